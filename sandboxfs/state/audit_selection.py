"""Which records of the audit log are wanted?"""

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.pattern import Pattern, PatternError, covers_path, parse, within

# What the `op` of a record can be.
OPERATIONS = (
    *("create", "getattr", "getxattr", "link", "listxattr", "lookup", "mkdir", "mknod", "open", "opendir"),
    *("read", "readdir", "readlink", "removexattr", "rename", "rmdir", "setattr", "setxattr", "symlink"),
    *("unlink", "write"),
)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@dataclass(frozen=True)
class Selection:
    """What a record must be to be shown; the default wants all.

    *since* is a time as records have it; *root*, the workspace, gives absolute patterns a meaning.
    """

    denied: bool = False
    path: str | None = None
    since: str | None = None
    op: str | None = None
    pid: int | None = None
    root: str = "/"

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
        return any(isinstance(path, str) and matches(glob, path, self.root) for path in _paths(record))


def check_operation(name: str) -> None:
    """Refuse what no record can have as its operation."""
    if name in OPERATIONS:
        return
    near = difflib.get_close_matches(name, OPERATIONS, n=1, cutoff=0.5)
    meant = f"; did you mean {quoted(near[0])}?" if near else ""
    raise UsageError(f"no such operation: {quoted(name)}{meant}", hint=f"there are {', '.join(OPERATIONS)}")


def _paths(record: dict[str, object]) -> tuple[object, object]:
    return record.get("path"), record.get("to")


def matches(glob: str, path: str, root: str = "/") -> bool:
    """Say whether *glob*, in the dialect of docs/policy.md, names *path* or a directory that holds it.

    *path* is relative to *root*. Raises `UsageError` when *glob* is no pattern.
    """
    names = [name for name in path.split("/") if name]
    # A record does not say whether its path was a directory's: either may be meant.
    return any(covers_path(pattern, names, is_dir=True) for pattern in _meaning(glob, root))


@lru_cache(maxsize=16)
def _meaning(glob: str, root: str) -> tuple[Pattern, ...]:
    try:
        return within(parse(glob), root)
    except PatternError as error:
        raise UsageError(f"bad pattern {quoted(glob)}: {error}") from error


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
