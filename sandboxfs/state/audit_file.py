"""Where are the lines of the audit log kept?

In `audit.jsonl`, and the older ones in `audit.jsonl.1`, `.2` and so on. What is appended is there whole or
not at all, and what a crash left of a line is cut off. Every failure is an OSError for the caller to count;
the next attempt starts from what is then found on disk.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

AUDIT_NAME = "audit.jsonl"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WINDOW = 1 << 16


@dataclass(frozen=True)
class Tail:
    """The last whole lines of a log, oldest first, and the length of what a crash left after them."""

    lines: list[bytes]
    torn: int


def kept_files(path: Path) -> list[Path]:
    """Return the files of the log at *path* that there are, newest first."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,5})")
    numbered = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in path.parent.iterdir():
            if matched := pattern.fullmatch(entry.name):
                numbered.append((int(matched[1]), entry))
    current = [path] if os.path.lexists(path) else []
    return current + [entry for _, entry in sorted(numbered)]


class AuditFile:
    """The files of one log, written by one thread of one process."""

    def __init__(self, path: Path, size_limit: int, keep: int) -> None:
        """Write to *path*, keeping at most *keep* files, itself included, of about *size_limit* bytes."""
        self._path = path
        self._size_limit = size_limit
        self._keep = keep
        self._descriptor: int | None = None
        # How long the file is with every line in it whole, and whether a failed append left more than that.
        self._whole = 0
        self._littered = False

    def open(self) -> Tail:
        """Open the file, made when missing, cut a torn line off, and return the end of the log."""
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(self._path))
            lines, whole = _last_lines(descriptor, found.st_size)
            if whole != found.st_size:
                os.ftruncate(descriptor, whole)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._whole = descriptor, whole
        return Tail(lines or self._older_lines(), found.st_size - whole)

    def check(self) -> str | None:
        """Make ready for an append; return what somebody else did to the file, if anything."""
        if self._descriptor is None:
            self.open()
            return None
        if not self._in_place(self._descriptor):
            self.close()
            self.open()
            return "the log file was removed or replaced"
        if self._littered:
            os.ftruncate(self._descriptor, self._whole)
            self._littered = False
        size, expected = os.fstat(self._descriptor).st_size, self._whole
        if size == expected:
            return None
        self.close()
        self.open()
        return f"the log file was {'shortened' if size < expected else 'written to'} by another program"

    @property
    def full(self) -> bool:
        return self._whole >= self._size_limit

    def rotate(self) -> None:
        """Put the file aside as number 1, those before it one further, and drop what is too many."""
        for number, path in reversed(list(enumerate(kept_files(self._path)))):
            if number + 1 >= self._keep:
                path.unlink()
            else:
                path.rename(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self.close()
        self.open()

    def append(self, data: bytes) -> None:
        """Write *data*, whole lines, or nothing; `check` must have been called before."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:] if written else data)
        except OSError:
            try:
                os.ftruncate(self._descriptor, self._whole)
            except OSError:
                self._littered = True
            raise
        self._whole += len(data)

    def sync(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def _older_lines(self) -> list[bytes]:
        for path in kept_files(self._path)[1:]:
            with path.open("rb") as older:
                lines, _ = _last_lines(older.fileno(), os.fstat(older.fileno()).st_size)
            if lines:
                return lines
        return []


def _last_lines(descriptor: int, size: int) -> tuple[list[bytes], int]:
    """Return the last whole lines, at least one where there is one, and where the last of them ends."""
    window = _WINDOW
    while True:
        start = max(0, size - window)
        data = os.pread(descriptor, size - start, start)
        last = data.rfind(b"\n")
        first = 0 if start == 0 else data.find(b"\n") + 1
        if start == 0 or 0 < first <= last:
            break
        window *= 8
    return data[first : last + 1].split(b"\n")[:-1], start + last + 1
