"""Pages of documentation as tests read them: their code blocks, and what stands in backticks."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced code block."""

    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        """Whether it is to be pasted into a shell; what a command prints begins with its prompt."""
        return not self.language and not self.text.startswith("$ ")


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page in their order."""
    return [Block(language, found) for _, language, found in _FENCED.findall(text)]


def first_cells(text: str) -> list[str]:
    """Return the command that each row of a page's tables begins with, without its backticks."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
