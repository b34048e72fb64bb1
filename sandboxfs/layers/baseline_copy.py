"""How does a baseline come from elsewhere? Whole, from the sightings and contents that another one had."""

import json
import os
from collections.abc import Iterable

from sandboxfs.layers.baseline import LOG, PACK, Sighting
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
    return json.dumps(out, separators=(",", ":")).encode("ascii") + b"\n"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")
