"""The Content-Security-Policy of every page: nothing acts or is loaded but what the suite put in.

The second lock, should a text from a node ever reach a page unescaped. Scripts are allowed by their
hashes, which are taken of the suite's own texts and never of a page that was made.
"""

from __future__ import annotations

import base64
import hashlib
import re

_CHARSET = re.compile(r'<meta charset="utf-8"/?>')


def meta(*scripts: str) -> str:
    """Return the element for a page with these scripts: the texts between their tags."""
    hashes = " ".join(map(source, scripts)) or "'none'"
    return (
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'\">"
    )


def in_page(page: str, *scripts: str) -> str:
    """Return a page with the policy before all that it is to rule."""
    made, number = _CHARSET.subn(lambda found: f"{found[0]}\n{meta(*scripts)}", page, count=1)
    if not number:
        raise ValueError("a page without <meta charset> has no place for its policy")
    return made


def source(script: str) -> str:
    """Return how a policy allows one script: by the hash of its text."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
