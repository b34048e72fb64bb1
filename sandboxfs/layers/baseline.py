"""What was the workspace when the sandbox first changed it? The baseline, as it is read.

A sighting says what a lower path was. The file `log` holds them as JSON lines, the file `pack` contents, one
after the other; `baseline_writer` writes both. A killed writer leaves at most a torn last line, of a change
that was not made. Damage makes a sighting or a content be missing, never be wrong: contents are checked
against the digest in the log, and a path without a sighting reads as a conflict, not as unchanged.
"""

import json
import os
import stat
from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b

from sandboxfs.layers.hostdir import HostDir

LIMIT = 1 << 20
"""Regular files up to this size get a digest, and their bytes are kept where they can be merged."""

LOG, PACK = b"log", b"pack"
_DIGEST_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a lower path was.

    *path* is relative to the workspace, empty for the workspace itself. *number* is the inode number that
    the view showed: the record of a copy carries the same. *digest* is of the content of a regular file, None
    when that was too large or could not be read; *target* is where a symlink led; *saved* is the offset and
    length of the content in the pack. *marked*: a commit has put a text with conflict markers there since,
    for a person to resolve.
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


class Baseline:
    """A baseline, read. The directory must stay open for as long as contents are asked for."""

    def __init__(
        self, directory: HostDir, sightings: dict[bytes, Sighting], aside: Collection[bytes] = ()
    ) -> None:
        self._directory = directory
        self._sightings = sightings
        self._aside = aside
        self._paths: list[bytes] | None = None

    @classmethod
    def load(cls, directory: HostDir) -> "Baseline":
        """Read the log; the newest sighting of a path counts. No log means no sightings."""
        log = Log(_read_log(directory))
        return cls(directory, log.sightings, log.aside)

    def get(self, path: bytes) -> Sighting | None:
        return self._sightings.get(path)

    def is_aside(self, path: bytes) -> bool:
        """Whether the sighting of *path* was put aside, and counts again when what it is of comes back."""
        return path in self._aside

    def below(self, path: bytes) -> Iterator[Sighting]:
        """The sightings of all that was inside *path*, itself not included, sorted."""
        if self._paths is None:
            self._paths = sorted(self._sightings)
        prefix = path + b"/" if path else b""
        for at in range(bisect_left(self._paths, prefix), len(self._paths)):
            inner = self._paths[at]
            if not inner.startswith(prefix):
                break
            if inner:
                yield self._sightings[inner]

    def content(self, sighting: Sighting) -> bytes | None:
        """The bytes that were saved with a sighting; None when there are none, or they are damaged."""
        if sighting.saved is None or sighting.digest is None:
            return None
        offset, length = sighting.saved
        try:
            fd = self._directory.open(PACK, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            content = os.pread(fd, length, offset)
        finally:
            os.close(fd)
        return content if digest_of(content) == sighting.digest else None


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
    """What the lines of a log come to. *aside* are sightings of what left the upper and may come back."""

    def __init__(self, log: bytes) -> None:
        self.sightings: dict[bytes, Sighting] = {}
        self.aside: dict[bytes, Sighting] = {}
        # What follows the last newline is nothing, or torn.
        for line in log.split(b"\n")[:-1]:
            try:
                self._apply(json.loads(line))
            except (ValueError, KeyError, TypeError):
                continue

    def _apply(self, entry: object) -> None:
        """Take one line into account; ValueError, KeyError or TypeError when it makes no sense."""
        if not isinstance(entry, dict):
            raise TypeError
        if "moved" in entry:
            old, new = entry["moved"]
            for sightings in (self.sightings, self.aside):
                _move(sightings, _bytes(old), _bytes(new))
        elif "forgotten" in entry:
            for sightings in (self.sightings, self.aside):
                _take(sightings, _bytes(entry["forgotten"]), whole=True)
        elif "settled" in entry:
            self.aside |= _take(self.sightings, _bytes(entry["settled"]), whole=entry["whole"] is True)
        elif "returned" in entry:
            # What was seen since counts.
            back = _take(self.aside, _bytes(entry["returned"]), whole=entry["whole"] is True)
            self.sightings.update((path, one) for path, one in back.items() if path not in self.sightings)
        elif "kept" in entry:
            self._keep(entry)
        else:
            sighting = _sighting(entry)
            self.sightings[sighting.path] = sighting

    def _keep(self, entry: dict[str, object]) -> None:
        sighting = self.sightings[_bytes(entry["kept"])]
        if sighting.saved is None and sighting.digest == bytes.fromhex(str(entry["digest"])):
            self.sightings[sighting.path] = replace(sighting, saved=_saved(entry["saved"]))


def _sighting(entry: dict[str, object]) -> Sighting:
    return Sighting(
        path=_bytes(entry["path"]),
        mode=_number(entry["mode"]),
        uid=_number(entry["uid"]),
        gid=_number(entry["gid"]),
        size=_number(entry["size"]),
        nlink=_number(entry["nlink"]),
        mtime_ns=_number(entry["mtime_ns"]),
        ctime_ns=_number(entry["ctime_ns"]),
        dev=_number(entry["dev"]),
        ino=_number(entry["ino"]),
        number=_number(entry["number"]),
        digest=bytes.fromhex(str(entry["digest"])) if "digest" in entry else None,
        target=_bytes(entry["target"]) if "target" in entry else None,
        saved=_saved(entry["saved"]) if "saved" in entry else None,
        marked=entry.get("marked") is True,
    )


def _take(sightings: dict[bytes, Sighting], path: bytes, *, whole: bool) -> dict[bytes, Sighting]:
    """Take out the sighting of *path* and, if it was a directory and as a *whole*, of what was in it."""
    sighting = sightings.pop(path, None)
    if sighting is None:
        return {}
    inner = _within(sightings, path) if whole and stat.S_ISDIR(sighting.mode) else []
    return {path: sighting} | {one: sightings.pop(one) for one in inner}


def _move(sightings: dict[bytes, Sighting], old: bytes, new: bytes) -> None:
    """Key what is at and below *old* by *new*; what was known of there is known no more."""
    moving = [sightings.pop(path) for path in _within(sightings, old)]
    for path in _within(sightings, new):
        del sightings[path]
    for sighting in moving:
        path = new + sighting.path[len(old) :]
        sightings[path] = replace(sighting, path=path)


def _within(sightings: dict[bytes, Sighting], top: bytes) -> list[bytes]:
    prefix = top + b"/"
    return [path for path in sightings if path == top or path.startswith(prefix)]


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
