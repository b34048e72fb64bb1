"""Which records of the audit log are wanted?"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Selection:
    """What a record must be to be shown; the default wants all. *since* is a time as records have it."""

    denied: bool = False
    path: str | None = None
    since: str | None = None
    op: str | None = None
    pid: int | None = None

    def wants(self, record: dict[str, object]) -> bool:
        """Say whether *record* is wanted. Events are, unless something is asked that only decisions have."""
        return (
            (self.since is None or str(record.get("time")) >= self.since)
            and (not self.denied or record.get("allowed") is False)
            and (self.op is None or record.get("op") == self.op)
            and (self.pid is None or record.get("pid") == self.pid)
            and (self.path is None or self._on_path(self.path, record))
        )

    def _on_path(self, glob: str, record: dict[str, object]) -> bool:
        return any(isinstance(path, str) and matches(glob, path) for path in _paths(record))


def _paths(record: dict[str, object]) -> tuple[object, object]:
    return record.get("path"), record.get("to")


def matches(glob: str, path: str) -> bool:
    """Say whether *glob* names *path*, relative to the root, or a directory that holds it.

    `*` and `?` stay within one component, `**` does not, `[…]` is a set. A glob without a slash names a
    component at any depth. Raises `UsageError` when it is not a glob.
    """
    return _compiled(glob).match(path) is not None


@lru_cache(maxsize=16)
def _compiled(glob: str) -> re.Pattern[str]:
    anchored = "/" in glob.rstrip("/")
    parts = [part for part in glob.split("/") if part not in ("", ".")]
    text = "".join("(?:[^/]+/)*" if part == "**" else _component(part) + "/" for part in parts[:-1])
    text += ".*" if parts[-1:] == ["**"] else _component("".join(parts[-1:])) + r"(?:/.*)?"
    try:
        return re.compile(("" if anchored else "(?:.*/)?") + text + r"\Z", re.DOTALL)
    except re.error as error:
        raise UsageError(f"bad glob {quoted(glob)}: {error.msg}") from error


def _component(part: str) -> str:
    pieces = re.findall(r"\\.|\*+|\?|\[!?\]?[^]]*\]|.", part, re.DOTALL)
    return "".join(map(_piece, pieces))


def _piece(piece: str) -> str:
    if piece.startswith("*"):
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if piece.startswith("[") and len(piece) > 2:
        inside = re.sub(r"([\\\[\]&~|^])", r"\\\1", piece[1:-1].removeprefix("!"))
        return f"(?!/)[{'^' if piece[1] == '!' else ''}{inside}]"
    return re.escape(piece[1] if len(piece) == 2 and piece.startswith("\\") else piece)


def parse_since(text: str, now: datetime) -> str:
    """Read a length of time before *now*, such as `10m`, or a date and time; return it as records have it."""
    if matched := re.fullmatch(r"(\d{1,9})([smhdw])", text):
        try:
            moment = now - timedelta(**{_UNITS[matched[2]]: int(matched[1])})
        except OverflowError:
            moment = datetime.min.replace(tzinfo=UTC)
    else:
        try:
            # Without an offset it is what the clock on the wall said.
            moment = datetime.fromisoformat(text).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"bad time {quoted(text)}",
                hint="give a length of time such as 30s, 10m, 2h or 7d, or a time such as 2026-01-31T12:00",
            ) from error
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0") + "Z"
