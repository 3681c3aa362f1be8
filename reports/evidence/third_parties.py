"""What is given to third parties: without secrets, users, homes and addresses, and with a list.

The run directory itself is evidence between those who signed the contract, and is not changed. What
is made of it for others (a dossier, an export) is cleaned here, and says what was removed and what
is still in it. Host names are replaced on request, the same name by the same one.
"""

from __future__ import annotations

import ipaddress
import os
import pwd
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fixtures.redaction import REMOVED, is_secret_name, shown_text

VENDOR, CUSTOMER = "vendor", "customer"
OF_ORDER = ("customer", "supplier", "site", "order_number")
"""Names of the order, which a vendor does not get."""
LEFT_IN = (
    "measured values, limits, verdicts, times and notes",
    "identity of devices: UUIDs, serial numbers, PCI addresses, port GUIDs, firmware",
    "versions of driver, kernel, libraries and the suite; id of the run",
)

SECRETS, USERS, PATHS, ADDRESSES, HOSTS, PARTIES = (
    "secrets", "user names", "home directories and other folders", "addresses", "host names",
    "parties of the order, and command lines",
)  # fmt: skip

_PATH = re.compile(r"(?<![\w/.~])(?:~[\w.-]*|(?=/))(?:/[\w.@+,=~%:\[\]-]+)+/?|(?<![\w/.~])~[\w.-]+")
_SYSTEM = frozenset(
    ["__w", "bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "pytorch", "run", "sbin",
     "sys", "tmp", "usr", "var"]
)  # fmt: skip
"""First parts of paths that are the same on every host."""
_HOMES = frozenset({"home", "homes", "user", "users", "u"})
_NO_PERSON = frozenset(
    ["admin", "cluster", "gpu", "login", "node", "nobody", "nvidia", "operator", "root", "run",
     "runner", "shared", "slurm", "test", "user", "users", "worker"]
)  # fmt: skip
"""Names of no person: as words of a text they stay."""
_USER = re.compile(
    r"(?:\b(?:user|username|logname|owner|login)[ \t]*[=:][ \t]*|\bUserId=|\buid=\d+\()"
    r"(?P<name>[A-Za-z_][\w.-]*)(?=[\s,;()\]]|$)|\[(?P<setter>[A-Za-z_][\w.-]*)@\d{4}-",
    re.IGNORECASE,
)
"""Where a text names a user: USER=name, UserId=name(1000), uid=1000(name), [name@2026-11-01...]."""
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@(?P<host>[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,})(?![\w-])")
_IPV4 = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9A-Fa-f.]{0,15})(?:%\w+)?(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5,19}(?![\w:-])")
_VERSIONED = re.compile(r"version|firmware|vbios|driver|cuda|nccl|cudnn|inforom|torch|kernel", re.I)
"""Names of fields whose numbers with dots are versions."""
_FILES = ("json", "jsonl", "txt", "html", "csv", "xml", "log", "out")


class Cleaned:
    """Texts of one run, as third parties get them."""

    def __init__(
        self,
        audience: str,
        run: Mapping[str, Any],
        nodes: Iterable[str],
        source: Path | None = None,
        *,
        without_host_names: bool = False,
    ) -> None:
        self.audience = audience
        self.without_host_names = without_host_names
        self._removed: Counter[str] = Counter()
        self._nodes = list(dict.fromkeys(map(str, nodes)))
        self._users = set(_owners(source))
        self._hosts: dict[str, str] = {}
        if without_host_names:
            owner = run.get("owner")
            said = [run.get("host"), owner.get("host") if isinstance(owner, Mapping) else None]
            login = [str(h) for h in said if h and str(h) not in self._nodes]
            self._hosts = {n: f"node-{k}" for k, n in enumerate(self._nodes, 1)}
            self._hosts |= {h: f"login-{k}" for k, h in enumerate(dict.fromkeys(login), 1)}
        self._host_pattern = _pattern_of_hosts(self._hosts)
        self._user_pattern: re.Pattern[str] | None = None

    def __call__(self, data: Any) -> Any:
        """Return plain data of the same shape, cleaned."""
        for text in _texts(data):
            self._users |= set(_users_in(text))
        names = sorted(n for n in self._users if len(n) > 1 and n.lower() not in _NO_PERSON)
        words = "|".join(map(re.escape, names))
        self._user_pattern = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None
        return self._clean(data, "")

    def host(self, name: str) -> str:
        """Return the name of a host as third parties see it."""
        return self._hosts.get(name, name)

    def listed(self) -> dict[str, Any]:
        """Return what was removed, with how often, and what is left in."""
        left_in = [*LEFT_IN]
        if not self.without_host_names:
            left_in.append("host names (--without-host-names replaces them)")
        if self.audience == CUSTOMER:
            left_in.append("parties of the order, and command lines")
        kinds = [SECRETS, USERS, PATHS, ADDRESSES]
        kinds += [HOSTS] * self.without_host_names + [PARTIES] * (self.audience == VENDOR)
        return {
            "for": self.audience,
            "removed": {kind: self._removed[kind] for kind in kinds},
            "left_in": left_in,
        }

    def lines(self) -> list[str]:
        """Return the same as lines of text."""
        found = self.listed()
        removed = ", ".join(f"{kind} ({n})" for kind, n in found["removed"].items())
        return [f"for the {self.audience}", f"removed: {removed}",
                *(f"left in: {what}" for what in found["left_in"])]  # fmt: skip

    def _clean(self, data: Any, name: str) -> Any:
        if isinstance(data, Mapping):
            found = {}
            for key, value in data.items():
                if self.audience == VENDOR and key in (*OF_ORDER, "commands") and value:
                    self._removed[PARTIES] += 1
                    value = [] if isinstance(value, list) else REMOVED
                elif isinstance(value, str) and value and is_secret_name(str(key)):
                    self._removed[SECRETS] += 1
                    value = REMOVED
                text = self._text(key, "") if isinstance(key, str) else key
                found[text] = self._clean(value, str(key))
            return found
        if isinstance(data, (list, tuple)):
            return [self._clean(value, name) for value in data]
        return self._text(data, name) if isinstance(data, str) else data

    def _text(self, text: str, field: str) -> str:
        shown = shown_text(text)
        self._removed[SECRETS] += len(shown.removed)
        text = _PATH.sub(self._path, shown.text)
        text = _MAIL.sub(self._mail, text)
        text = _MAC.sub(self._as(ADDRESSES, "address"), text)
        text = _IPV6.sub(self._address, text)
        if not _VERSIONED.search(field):
            text = _IPV4.sub(self._address, text)
        if self._user_pattern is not None:
            text = self._user_pattern.sub(self._as(USERS, "user"), text)
        if self._host_pattern is not None:
            text = self._host_pattern.sub(self._host, text)
        return text

    def _as(self, kind: str, word: str) -> Callable[[re.Match[str]], str]:
        def replaced(_: re.Match[str]) -> str:
            self._removed[kind] += 1
            return f"[{word}]"

        return replaced

    def _path(self, match: re.Match[str]) -> str:
        parts = match[0].rstrip("/").split("/")
        if parts[0].startswith("~"):
            below = parts[1:]
        elif parts[1] == "root":
            below = parts[2:]
        elif (home := _home_in(parts)) is not None:
            below = parts[home + 1 :]
        elif len(parts) > 2 and parts[1] not in _SYSTEM:
            self._removed[PATHS] += 1
            return f"[folder]/{parts[-1]}"
        else:
            return match[0]
        self._removed[PATHS] += 1
        return "/".join(["[home]", *below[-1:]])

    def _mail(self, match: re.Match[str]) -> str:
        host = match["host"]
        if host in self._nodes or host.rpartition(".")[2] in _FILES:
            return match[0]  # a record: gemm@node.json
        self._removed[ADDRESSES] += 1
        return "[address]"

    def _address(self, match: re.Match[str]) -> str:
        text = match[0]
        try:
            ipaddress.ip_address(text.partition("%")[0].rstrip("."))
        except ValueError:
            return text
        if not any(c.isalnum() for c in text):
            return text
        self._removed[ADDRESSES] += 1
        return "[address]"

    def _host(self, match: re.Match[str]) -> str:
        self._removed[HOSTS] += 1
        if match["many"]:
            return "[nodes]"
        domain = match["domain"] or ""
        suffix = domain.rpartition(".")[2]
        kept = f".{suffix}" if suffix in _FILES else ""
        return self._hosts[match["host"]] + kept


def _pattern_of_hosts(hosts: Mapping[str, str]) -> re.Pattern[str] | None:
    if not hosts:
        return None
    names = "|".join(map(re.escape, sorted(hosts, key=lambda h: (-len(h), h))))
    stems = {re.split(r"\d", h, maxsplit=1)[0] for h in hosts if re.search(r"\d", h)}
    many = "|".join(map(re.escape, sorted(stems, key=lambda s: (-len(s), s)))) or r"(?!)"
    return re.compile(
        rf"(?<![A-Za-z0-9.])(?:(?P<host>{names})(?P<domain>(?:\.[A-Za-z][\w-]*)*)(?![A-Za-z0-9])"
        rf"|(?P<many>(?:{many})\[[\d,-]+\][\w.-]*))"
    )


def _home_in(parts: Sequence[str]) -> int | None:
    """Return which part of a path is the name of the user whose home it begins with."""
    for k, part in enumerate(parts[:-1]):
        if part.lower() in _HOMES:
            # /home/a/alice: sites with many users sort them by their first letter.
            deeper = len(parts[k + 1]) == 1 and k + 2 < len(parts)
            return k + 1 + deeper
    return None


def _owners(source: Path | None) -> Iterator[str]:
    """Yield who owns the run directory, and who makes the export."""
    numbers = {os.getuid()}
    if source is not None:
        with suppress(OSError):
            numbers.add(source.stat().st_uid)
    for number in numbers:
        with suppress(KeyError):
            yield pwd.getpwuid(number).pw_name


def _users_in(text: str) -> Iterator[str]:
    for match in _PATH.finditer(text) if "/" in text or "~" in text else ():
        parts = match[0].rstrip("/").split("/")
        if (home := _home_in(parts)) is not None:
            yield parts[home]
        elif parts[0].startswith("~") and len(parts[0]) > 1:
            yield parts[0][1:]
    for match in _USER.finditer(text):
        yield match["name"] or match["setter"]


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _texts(key)
            yield from _texts(value)
            if isinstance(value, str) and str(key).lower() in ("user", "username", "owner"):
                yield f"{key}={value}"
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _texts(value)
