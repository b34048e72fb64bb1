"""What does an archive say about one entry of the upper, or one sighting of the baseline?

One JSON object a line, paths and other bytes as text with surrogates for what is no UTF-8. An entry says what
it means, not how the upper writes it: a whiteout is a line, not a device. Inode numbers stand for "the same
file" and nothing else: they are given anew where the archive is unpacked.

Parsing believes nothing: see `archive_fields`.
"""

import base64
import json
import stat
from dataclasses import dataclass
from enum import StrEnum

from sandboxfs.changes.archive_fields import LARGEST, LARGEST_ID, Fields
from sandboxfs.changes.archive_stream import BadArchive
from sandboxfs.layers.baseline import Sighting
from sandboxfs.paths import quoted


class Type(StrEnum):
    """What an entry is; a link is one more name of an entry before it."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    LINK = "link"
    WHITEOUT = "whiteout"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in the upper.

    *number* is 0 where the sandbox made the file, else what the sighting of the file it was copied from has.
    *redirect* is the lower path that a directory's content comes from, *target* where a symlink leads or, of
    a link, the path of the entry that it is the same file as.
    """

    path: bytes
    type: Type
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    number: int = 0
    size: int = 0
    digest: bytes = b""
    target: bytes = b""
    opaque: bool = False
    redirect: bytes | None = None
    xattrs: tuple[tuple[bytes, bytes], ...] = ()


# Writing


def entry_line(entry: Entry) -> bytes:
    """The line of a listing that says *entry*."""
    out: dict[str, object] = {"path": _text(entry.path), "type": entry.type.value}
    if entry.type is Type.LINK:
        out["target"] = _text(entry.target)
    elif entry.type is not Type.WHITEOUT:
        out |= {"mode": entry.mode, "uid": entry.uid, "gid": entry.gid, "mtime_ns": entry.mtime_ns}
        out |= _particulars(entry)
    return _line(out)


def _particulars(entry: Entry) -> dict[str, object]:
    out: dict[str, object] = {}
    if entry.number:
        out["number"] = entry.number
    if entry.type is Type.FILE:
        out |= {"size": entry.size, "digest": entry.digest.hex()}
    if entry.type is Type.SYMLINK:
        out["target"] = _text(entry.target)
    if entry.opaque:
        out["opaque"] = True
    if entry.redirect is not None:
        out["redirect"] = _text(entry.redirect)
    if entry.xattrs:
        out["xattrs"] = {_text(name): base64.b64encode(value).decode() for name, value in entry.xattrs}
    return out


def sighting_line(sighting: Sighting) -> bytes:
    """The line that says *sighting*, without what only this machine could tell the object by."""
    out: dict[str, object] = {
        "path": _text(sighting.path),
        "mode": sighting.mode,
        "uid": sighting.uid,
        "gid": sighting.gid,
        "size": sighting.size,
        "nlink": sighting.nlink,
        "mtime_ns": sighting.mtime_ns,
        "number": sighting.number,
    }
    if sighting.digest is not None:
        out["digest"] = sighting.digest.hex()
    if sighting.target is not None:
        out["target"] = _text(sighting.target)
    if sighting.saved is not None:
        out["saved"] = list(sighting.saved)
    if sighting.marked:
        out["marked"] = True
    return _line(out)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


# Reading


def parse_entry(line: bytes) -> Entry:
    fields = Fields.of_line(line)
    path = fields.path("path")
    try:
        kind = Type(fields.take("type", str))
    except ValueError as error:
        raise BadArchive(f"it lists {quoted(path)} as something it cannot hold") from error
    if kind is Type.WHITEOUT:
        entry = Entry(path, kind)
    elif kind is Type.LINK:
        entry = Entry(path, kind, target=fields.path("target"))
    else:
        entry = Entry(
            path,
            kind,
            mode=fields.number("mode", 0o7777),
            uid=fields.number("uid", LARGEST_ID),
            gid=fields.number("gid", LARGEST_ID),
            mtime_ns=fields.time("mtime_ns"),
            number=fields.number("number", LARGEST) if fields.has("number") else 0,
            size=fields.number("size", LARGEST) if kind is Type.FILE else 0,
            digest=fields.digest("digest") if kind is Type.FILE else b"",
            target=fields.target("target") if kind is Type.SYMLINK else b"",
            opaque=fields.flag("opaque") if kind is Type.DIRECTORY else False,
            redirect=fields.path("redirect") if kind is Type.DIRECTORY and fields.has("redirect") else None,
            xattrs=fields.attributes("xattrs"),
        )
    fields.finish()
    return entry


def parse_sighting(line: bytes) -> Sighting:
    fields = Fields.of_line(line)
    path = fields.path("path")
    mode = fields.number("mode", 0o177777)
    sighting = Sighting(
        path=path,
        mode=mode,
        uid=fields.number("uid", LARGEST_ID),
        gid=fields.number("gid", LARGEST_ID),
        size=fields.number("size", LARGEST),
        nlink=fields.number("nlink", LARGEST_ID),
        mtime_ns=fields.time("mtime_ns"),
        # No object of this machine is it: its content decides.
        ctime_ns=0,
        dev=0,
        ino=0,
        number=fields.number("number", LARGEST),
        digest=fields.digest("digest") if fields.has("digest") else None,
        target=fields.target("target") if stat.S_ISLNK(mode) else None,
        saved=fields.saved("saved") if fields.has("saved") else None,
        marked=fields.flag("marked"),
    )
    fields.finish()
    return sighting
