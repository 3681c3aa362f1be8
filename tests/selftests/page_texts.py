"""What a person reads of a page or a screen, and marks of text that was made for no person."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

INLINE = {"a", "b", "i", "code", "small", "span", "wbr", "em", "strong", "tspan"}
UNSEEN = {"style", "script", "title", "template"}
READ_ALOUD = ("aria-label", "placeholder")


def visible(page: str) -> str:
    """Return the text of a page, one line for each block; with it the rows of the report's table,
    which its script takes from an attribute."""
    seen = _Text()
    seen.feed(page)
    seen.close()
    return "\n".join(line for part in seen.text.splitlines() if (line := " ".join(part.split())))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._unseen = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in UNSEEN:
            self._unseen = self._unseen or tag
        if tag not in INLINE:
            self.text += "\n"
        given = {name: value or "" for name, value in attrs}
        for name in READ_ALOUD:
            if name in given:
                self.text += f"\n{given[name]}\n"
        if blob := given.get("data-jsonblob"):
            for rows in json.loads(blob)["tests"].values():
                for row in rows:
                    for cell in (*row["resultsTableRow"], row["log"]):
                        self.text += f"\n{visible(cell)}\n"

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unseen:
            self._unseen = ""
        if tag not in INLINE:
            self.text += "\n"

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.text += html.unescape(data)


PYTHON = re.compile(r"[{\[]['\"]")
EXPONENT = re.compile(r"(?<![-\w.])\d+(?:\.\d+)?e[+-]?\d{2,3}\b")
PERCENT = re.compile(r"(?<![\w.])\d[\d,]{3,}(?:\.\d+)? ?%")
ONE_OF_MANY = re.compile(
    r"(?<![-\w.,:/])(?<!-r )1 (?!(?:is|has|was|its|this|across|plus|as|does|s)\b)"
    r"[A-Za-z]+[^s\W]s\b(?![/(])"
)
DENOMINATOR = re.compile(r"\b\d+ of (\d+) (?:criteria|criterion|checks?|verdicts?|judged)\b")


def faults(text: str) -> Iterator[str]:
    """Yield what no page and no screen may say: Python, exponents, absurd percentages, "1 nodes",
    and one thing counted of two totals."""
    for pattern in (PYTHON, EXPONENT, PERCENT, ONE_OF_MANY):
        for match in pattern.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            at = line.find(match[0])
            yield f"{match[0]!r} in {line[max(0, at - 60) : at + 60]!r}"
    if "could not be drawn" in text:
        yield "a part could not be drawn"
    if len(totals := set(DENOMINATOR.findall(text))) > 1:
        yield f"counted of {sorted(totals)}"
