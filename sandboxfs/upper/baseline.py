"""Baseline, as it is read: what lower entries were when the sandbox first changed them.

A baseline entry describes one lower path. The file `log` holds the entries as JSON lines, the file `pack`
saved contents, one after the other; `baseline_log` writes both. A killed writer leaves at most a torn last
line, of a change that was not made. Damage can make an entry or a content missing, never wrong: contents are
checked against the digest in the log, and a path without an entry reads as a conflict, not as unchanged.
"""

import json
import os
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from sandboxfs.hostfs.directory import HostDir

LIMIT = 1 << 20
"""Regular files up to this size get a digest, and their bytes are kept where they can be merged."""

LOG, PACK = b"log", b"pack"
_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """The state of a lower path before the sandbox changed it.

    *path* is relative to the workspace, empty for the workspace itself. *number* is the inode number that
    the view showed: the inode record of a copy carries the same. *digest* is of the content of a regular
    file, None when that was too large or could not be read; *target* is the target of a symlink; *saved* is
    the offset and length of the content in the pack. *marked*: a commit has put a text with conflict markers
    there since, for a person to resolve. *volume* is that of a directory that was the root of a mount, empty
    where its file system has none; None for everything else.
    """

    path: bytes
    mode: int
    uid: int
    gid: int
    size: int
    nlink: int
    mtime_ns: int
    ctime_ns: int
    dev: int
    ino: int
    number: int
    digest: bytes | None
    target: bytes | None
    saved: tuple[int, int] | None
    marked: bool = False
    volume: str | None = None


class Baseline:
    """A baseline, read. The directory must stay open for as long as contents are asked for."""

    def __init__(
        self, directory: HostDir, entries: dict[bytes, BaselineEntry], aside: Collection[bytes] = ()
    ) -> None:
        self._directory = directory
        self._entries = entries
        self._aside = aside
        self._paths: list[bytes] | None = None

    @classmethod
    def load(cls, directory: HostDir) -> "Baseline":
        """Read the log; the newest entry of a path counts. No log means no entries."""
        log = Log(_read_log(directory))
        return cls(directory, log.entries, log.aside)

    def get(self, path: bytes) -> BaselineEntry | None:
        return self._entries.get(path)

    def is_aside(self, path: bytes) -> bool:
        """Whether the entry of *path* is suspended, and counts again when its upper entry comes back."""
        return path in self._aside

    def below(self, path: bytes) -> Iterator[BaselineEntry]:
        """The entries of all that was inside *path*, without *path* itself, sorted."""
        if self._paths is None:
            self._paths = sorted(self._entries)
        prefix = path + b"/" if path else b""
        for at in range(bisect_left(self._paths, prefix), len(self._paths)):
            inner = self._paths[at]
            if not inner.startswith(prefix):
                break
            if inner:
                yield self._entries[inner]

    def mounts(self) -> Iterator[BaselineEntry]:
        """The entries of directories below the top that were roots of mounts."""
        return (entry for path, entry in self._entries.items() if path and entry.volume is not None)

    def content(self, entry: BaselineEntry) -> bytes | None:
        """The content saved with an entry; None when there is none, or damage."""
        if entry.saved is None or entry.digest is None:
            return None
        offset, length = entry.saved
        try:
            fd = self._directory.open(PACK, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            content = os.pread(fd, length, offset)
        finally:
            os.close(fd)
        return content if digest_of(content) == entry.digest else None


def digest_of(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _read_log(directory: HostDir) -> bytes:
    try:
        fd = directory.open(LOG, os.O_RDONLY)
    except FileNotFoundError:
        return b""
    with open(fd, "rb") as log:
        return log.read()


class Log:
    """The state after all lines of a log. *aside* are suspended entries, which may count again."""

    def __init__(self, log: bytes) -> None:
        self.entries: dict[bytes, BaselineEntry] = {}
        self.aside: dict[bytes, BaselineEntry] = {}
        # Bytes after the last newline are a torn line.
        for line in log.split(b"\n")[:-1]:
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue

    def _apply(self, values: object) -> None:
        """Take one line into account; ValueError, KeyError or TypeError when it makes no sense."""
        if not isinstance(values, dict):
            raise TypeError
        if "moved" in values:
            old, new = values["moved"]
            for entries in (self.entries, self.aside):
                _move(entries, _bytes(old), _bytes(new))
        elif "forgotten" in values:
            for entries in (self.entries, self.aside):
                _take(entries, _bytes(values["forgotten"]), whole=True)
        elif "settled" in values:
            self.aside |= _take(self.entries, _bytes(values["settled"]), whole=values["whole"] is True)
        elif "returned" in values:
            # A newer entry counts.
            back = _take(self.aside, _bytes(values["returned"]), whole=values["whole"] is True)
            self.entries.update((path, one) for path, one in back.items() if path not in self.entries)
        elif "kept" in values:
            self._keep(values)
        else:
            entry = _entry_of(values)
            self.entries[entry.path] = entry

    def _keep(self, values: dict[str, object]) -> None:
        entry = self.entries[_bytes(values["kept"])]
        if entry.saved is None and entry.digest == bytes.fromhex(str(values["digest"])):
            self.entries[entry.path] = replace(entry, saved=_saved(values["saved"]))


def _entry_of(values: dict[str, object]) -> BaselineEntry:
    return BaselineEntry(
        path=_bytes(values["path"]),
        mode=_number(values["mode"]),
        uid=_number(values["uid"]),
        gid=_number(values["gid"]),
        size=_number(values["size"]),
        nlink=_number(values["nlink"]),
        mtime_ns=_number(values["mtime_ns"]),
        ctime_ns=_number(values["ctime_ns"]),
        dev=_number(values["dev"]),
        ino=_number(values["ino"]),
        number=_number(values["number"]),
        digest=bytes.fromhex(str(values["digest"])) if "digest" in values else None,
        target=_bytes(values["target"]) if "target" in values else None,
        saved=_saved(values["saved"]) if "saved" in values else None,
        marked=values.get("marked") is True,
        volume=str(values["volume"]) if "volume" in values else None,
    )


def _take(entries: dict[bytes, BaselineEntry], path: bytes, *, whole: bool) -> dict[bytes, BaselineEntry]:
    """Take out the entry of *path* and, as a *whole*, those of the content of the directory it was."""
    entry = entries.pop(path, None)
    if entry is None:
        return {}
    inner = _within(entries, path) if whole and stat.S_ISDIR(entry.mode) else []
    return {path: entry} | {one: entries.pop(one) for one in inner}


def _move(entries: dict[bytes, BaselineEntry], old: bytes, new: bytes) -> None:
    """Key the entries at and below *old* by *new*; the former entries at *new* are forgotten."""
    moving = [entries.pop(path) for path in _within(entries, old)]
    for path in _within(entries, new):
        del entries[path]
    for entry in moving:
        path = new + entry.path[len(old) :]
        entries[path] = replace(entry, path=path)


def _within(entries: dict[bytes, BaselineEntry], top: bytes) -> list[bytes]:
    prefix = top + b"/"
    return [path for path in entries if path == top or path.startswith(prefix)]


def _bytes(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError
    return text.encode("utf-8", "surrogateescape")


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _saved(value: object) -> tuple[int, int]:
    if not isinstance(value, list):
        raise TypeError
    offset, length = (_number(part) for part in value)
    if offset < 0 or not 0 <= length <= LIMIT:
        raise ValueError
    return offset, length
