"""Removing what looks like a secret from data that leaves the site. Pure; login side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

REMOVED = "[removed]"
_NAME = (
    r"(?:access[_-]?key|api[_-]?key|private[_-]?key|token(?!s)|secret|passw(?:or)?d|passphrase"
    r"|credential|authorization)"
)
_KEY = re.compile(_NAME, re.IGNORECASE)
_PATTERNS = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)", re.DOTALL),
    re.compile(  # NAME=value, "name": "value", --name value
        rf"(?P<kept>(?:--)?\b[\w.-]*{_NAME}[\w.-]*[\"']?\s*[=:]\s*|--[\w-]*{_NAME}[\w-]*\s+)"
        r"(?:bearer\s+|basic\s+)?[\"']?[^\s\"',;]+",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<kept>://)[^/\s:@]*:[^/\s@]+@"),
    re.compile(r"(?P<kept>\b(?:bearer|basic)\s+)[A-Za-z0-9+/._~=-]{8,}", re.IGNORECASE),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|hf_|glpat-|xox[abprs]-|nvapi-|sk-)[\w-]{16,}"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
)


def redacted(data: Any, secrets: Sequence[str] = ()) -> Any:
    """Return plain data of the same shape without what looks like a secret, and without `secrets`.

    Of a key that is named like one the text is removed; numbers are never secrets.
    """
    if isinstance(data, Mapping):
        return {
            key: REMOVED
            if isinstance(value, str) and value and _KEY.search(str(key))
            else redacted(value, secrets)
            for key, value in data.items()
        }
    if isinstance(data, (list, tuple)):
        return [redacted(value, secrets) for value in data]
    return without_secrets(data, secrets) if isinstance(data, str) else data


def without_secrets(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a text without what looks like a secret."""
    for secret in secrets:
        text = text.replace(secret, REMOVED)
    for pattern in _PATTERNS:
        text = pattern.sub(_kept, text)
    return text


def _kept(match: re.Match[str]) -> str:
    return f"{match.groupdict().get('kept') or ''}{REMOVED}"
