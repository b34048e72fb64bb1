"""How does a baseline come from elsewhere? Whole, from the sightings and contents that another one had.

Or one sighting alone, kept in a file by itself with its content: it may come back when the baseline has
another one.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import replace

from sandboxfs.layers.baseline import LOG, PACK, Log, Sighting, digest_of
from sandboxfs.layers.hostdir import HostDir

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY


def write_log(directory: HostDir, sightings: Iterable[Sighting]) -> None:
    """Make the log of a baseline that has none."""
    with open(directory.open(LOG, _NEW, 0o600), "wb") as log:
        for sighting in sightings:
            log.write(line_of(sighting))


def write_pack(directory: HostDir, contents: Iterable[bytes]) -> None:
    """Make the pack of a baseline that has none; sightings name their contents by offset and length."""
    with open(directory.open(PACK, _NEW, 0o600), "wb") as pack:
        for content in contents:
            pack.write(content)


def write_alone(directory: HostDir, name: bytes, sighting: Sighting, content: bytes | None) -> None:
    """Write one sighting to a file of its own, with its content."""
    with open(directory.open(name, _NEW, 0o600), "wb") as file:
        file.write(line_of(replace(sighting, saved=None)) + (content or b""))
        file.flush()
        os.fsync(file.fileno())


def read_alone(directory: HostDir, name: bytes) -> tuple[Sighting | None, bytes | None]:
    """Read what `write_alone` wrote; None for what is damaged, or was not known."""
    with open(directory.open(name, os.O_RDONLY), "rb") as file:
        line, _, content = file.read().partition(b"\n")
    sighting = next(iter(Log(line + b"\n").sightings.values()), None)
    whole = sighting is not None and digest_of(content) == sighting.digest
    return sighting, content if whole else None


def line_of(sighting: Sighting) -> bytes:
    out: dict[str, object] = {
        "path": _text(sighting.path),
        "mode": sighting.mode,
        "uid": sighting.uid,
        "gid": sighting.gid,
        "size": sighting.size,
        "nlink": sighting.nlink,
        "mtime_ns": sighting.mtime_ns,
        "ctime_ns": sighting.ctime_ns,
        "dev": sighting.dev,
        "ino": sighting.ino,
        "number": sighting.number,
    }
    if sighting.digest is not None:
        out["digest"] = sighting.digest.hex()
    if sighting.target is not None:
        out["target"] = _text(sighting.target)
    if sighting.saved is not None:
        out["saved"] = sighting.saved
    if sighting.marked:
        out["marked"] = True
    return json.dumps(out, separators=(",", ":")).encode("ascii") + b"\n"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
