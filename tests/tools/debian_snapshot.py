"""Which day's Debian a root was made from, and whether its mirror was out of date."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path


@dataclass(frozen=True)
class Snapshot:
    """What the mirror says of the release that a root was made from."""

    date: datetime
    valid_until: datetime | None
    """None where a release stays valid, as a stable one."""


def read(root: Path) -> Snapshot | None:
    """Return the day of the release that the root was made from; None where nothing says it."""
    for path in sorted(root.glob("var/lib/apt/lists/*Release")):
        text = path.read_text(encoding="utf-8", errors="replace")
        fields = dict(re.findall(r"^(Date|Valid-Until): (.+)$", text, re.MULTILINE))
        if "Date" in fields:
            times = {k: parsedate_to_datetime(v.replace("UTC", "+0000")) for k, v in fields.items()}
            return Snapshot(times["Date"], times.get("Valid-Until"))
    return None


def describe(root: Path, release: str, now: datetime) -> str:
    """Return in one line what release the root has, and whether its mirror was out of date."""
    found = read(root)
    if found is None:
        return f"{release}: its Release file is not there, so its day is unknown"
    line = f"{release} of {found.date:%d %b %Y}"
    if found.valid_until and found.valid_until < now:
        line += (
            f": the mirror is out of date, for this was valid until {found.valid_until:%d %b %Y}; "
            "that day's packages are used. A mirror that is kept up to date has newer ones"
        )
    return line


def tolerate_expired(root: Path) -> None:
    """Let apt inside take lists of a mirror that is out of date; `describe` says so."""
    found = read(root)
    if found and found.valid_until and found.valid_until < datetime.now(UTC):
        settings = root / "etc" / "apt" / "apt.conf.d" / "90expired"
        settings.write_text('Acquire::Check-Valid-Until "false";\n')
