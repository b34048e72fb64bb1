"""Archive format: manifest, entries and baseline entries as strict JSON.

The manifest is one object and comes first: `format`, then the sizes that the rest of the archive must keep
to. Entries are one object a line. An entry gives its meaning, not the upper's encoding: a whiteout is a line,
not a device. An inode number only marks names of the same file; the reader of an archive gives new numbers.

Archives are untrusted. A key that the type of an entry does not have is refused, a number has its range, and
paths lead from a root down and nowhere else. Extended attributes for marks of layers, or for labels of one
machine, are never accepted from an archive.
"""

import base64
import json
import re
import stat
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from sandboxfs.archive.tar import BadArchive
from sandboxfs.codec import (
    HEX,
    SPARSE,
    Check,
    Form,
    Malformed,
    between,
    decode,
    encode,
    pairs,
    table,
    text_form,
)
from sandboxfs.hostfs.copy import is_private
from sandboxfs.paths import quoted
from sandboxfs.upper.baseline import LIMIT, BaselineEntry

DIGEST_SIZE = 16
LARGEST = (1 << 63) - 1
LARGEST_ID = (1 << 32) - 2
_LONGEST_NAME = 255
_LONGEST_PATH = 1 << 16
_LONGEST_TARGET = 4095
_LARGEST_ATTRIBUTE = 1 << 16
_LABELS = (b"security.selinux", b"security.ima", b"security.evm", b"security.apparmor", b"trusted.")

FORMAT = 1
KIND = "sandboxfs archive"

MANIFEST = b"manifest.json"
BASELINE = b"baseline.jsonl"
SAVED = b"saved.bin"
CHANGES = b"changes.jsonl"
FILES = b"files/"

LONGEST = 16 << 20
"""The largest size of a manifest: only its rules can make it long."""

LONGEST_LISTING = 512 << 20
"""The largest size of a list of entries or baseline entries: some millions of them."""

_LINE = "one of its lines"

T = TypeVar("T")
Json = dict[str, object]


def travels(attribute: bytes) -> bool:
    """Whether an extended attribute goes into an archive: attributes of layers and of this machine do not."""
    return not is_private(attribute) and not attribute.startswith(_LABELS)


def is_plain(path: bytes) -> bool:
    """Whether *path* leads from a root down and nowhere else."""
    names = path.split(b"/")
    return (
        b"\0" not in path
        and len(path) <= _LONGEST_PATH
        and all(0 < len(name) <= _LONGEST_NAME and name not in (b".", b"..") for name in names)
    )


def _in_workspace(path: bytes) -> bytes:
    """Return *path* if it is below the root, or empty for the root itself; refuse any other."""
    if path and not is_plain(path):
        raise BadArchive(f"it names {quoted(path[:200])}, which is no path inside a workspace")
    return path


def _link_target(target: bytes) -> bytes:
    if not target or b"\0" in target or len(target) > _LONGEST_TARGET:
        raise BadArchive(f"{_LINE} has no sensible 'target'")
    return target


def _whole_digest(digest: bytes) -> bytes:
    if len(digest) != DIGEST_SIZE:
        raise Malformed(f"expected {DIGEST_SIZE} bytes in hex digits")
    return digest


def _attribute(name: bytes) -> bytes:
    if not travels(name) or not 0 < len(name) <= _LONGEST_NAME or b"\0" in name:
        raise BadArchive(f"it sets the extended attribute {quoted(name[:200])}")
    return name


def _attribute_value(value: bytes) -> bytes:
    if len(value) > _LARGEST_ATTRIBUTE:
        raise Malformed("longer than an extended attribute can be")
    return value


_BASE64: Final = text_form(
    lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)
)
_Path = Annotated[bytes, Check(_in_workspace)]
_Digest = Annotated[bytes, HEX, Check(_whole_digest)]
_Id = Annotated[int, between(0, LARGEST_ID)]
_Size = Annotated[int, between(0, LARGEST)]
_Time = Annotated[int, between(-LARGEST, LARGEST)]
_Attributes = Annotated[
    tuple[tuple[bytes, bytes], ...],
    pairs(Annotated[bytes, Check(_attribute)], Annotated[bytes, _BASE64, Check(_attribute_value)]),
]


class EntryType(StrEnum):
    """The type of an entry; a link is one more name of an earlier entry."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    LINK = "link"
    WHITEOUT = "whiteout"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One name in the upper.

    *number* is 0 for a file made in the sandbox, else the number in the baseline entry of the copied file.
    *redirect* is the lower path of a directory's content. *target* is the target of a symlink, or, for a
    link, the path of the entry with the same file.
    """

    path: _Path
    type: EntryType
    mode: Annotated[int, between(0, 0o7777)] = 0
    uid: _Id = 0
    gid: _Id = 0
    mtime_ns: _Time = 0
    number: _Size = field(default=0, metadata=SPARSE)
    size: _Size = 0
    digest: _Digest = b""
    target: bytes = b""
    opaque: bool = field(default=False, metadata=SPARSE)
    redirect: _Path | None = field(default=None, metadata=SPARSE)
    xattrs: _Attributes = field(default=(), metadata=SPARSE)


_NAME = ("path", "type")
_OBJECT = (*_NAME, "mode", "uid", "gid", "mtime_ns", "number", "xattrs")
_FORMS: Final = {
    EntryType.FILE: table(ArchiveEntry, *_OBJECT, "size", "digest"),
    EntryType.DIRECTORY: table(ArchiveEntry, *_OBJECT, "opaque", "redirect"),
    EntryType.SYMLINK: table(ArchiveEntry, *_OBJECT, "target"),
    EntryType.FIFO: table(ArchiveEntry, *_OBJECT),
    EntryType.SOCKET: table(ArchiveEntry, *_OBJECT),
    EntryType.LINK: table(ArchiveEntry, *_NAME, "target"),
    EntryType.WHITEOUT: table(ArchiveEntry, *_NAME),
}


@dataclass(frozen=True, slots=True)
class _WrittenBaselineEntry:
    """A baseline entry without the identity that only this machine can check."""

    path: _Path
    mode: Annotated[int, between(0, 0o177777)]
    uid: _Id
    gid: _Id
    size: _Size
    nlink: _Id
    mtime_ns: _Time
    number: _Size
    digest: _Digest = field(default=b"", metadata=SPARSE)
    target: Annotated[bytes, Check(_link_target)] = field(default=b"", metadata=SPARSE)
    saved: tuple[_Size, Annotated[int, between(0, LIMIT)]] | None = field(default=None, metadata=SPARSE)
    marked: bool = field(default=False, metadata=SPARSE)


def entry_line(entry: ArchiveEntry) -> bytes:
    """Return the line of a listing for *entry*."""
    return _line(_FORMS[entry.type].encode(entry))


def parse_entry(line: bytes) -> ArchiveEntry:
    found = _loaded(line, _LINE)
    kind = found.get("type")
    form = _FORMS.get(EntryType(kind)) if isinstance(kind, str) and kind in set(EntryType) else None
    if form is None:
        path = str(found.get("path"))[:200]
        raise BadArchive(f"it lists {quoted(path)} as something it cannot hold")
    entry = _read(form, found, _LINE)
    if entry.type is EntryType.LINK:
        _in_workspace(entry.target)
    elif entry.type is EntryType.SYMLINK:
        _link_target(entry.target)
    return entry


def baseline_line(entry: BaselineEntry) -> bytes:
    """Return the line of a listing for *entry*."""
    written = _WrittenBaselineEntry(
        entry.path,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.size,
        entry.nlink,
        entry.mtime_ns,
        entry.number,
        entry.digest or b"",
        entry.target or b"",
        entry.saved,
        entry.marked,
    )
    return _line(encode(written))


def parse_baseline_entry(line: bytes) -> BaselineEntry:
    found = _read(_WrittenBaselineEntry, _loaded(line, _LINE), _LINE)
    if stat.S_ISLNK(found.mode) != bool(found.target):
        raise BadArchive(f"{_LINE} has no sensible 'target'")
    return BaselineEntry(
        path=found.path,
        mode=found.mode,
        uid=found.uid,
        gid=found.gid,
        size=found.size,
        nlink=found.nlink,
        mtime_ns=found.mtime_ns,
        # No object of this machine has this identity, so the content decides.
        ctime_ns=0,
        dev=0,
        ino=0,
        number=found.number,
        digest=found.digest or None,
        target=found.target or None,
        saved=found.saved,
        marked=found.marked,
    )


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _loaded(text: bytes, where: str) -> Json:
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArchive(f"{where} makes no sense") from error
    if not isinstance(found, dict):
        raise BadArchive(f"{where} makes no sense")
    return found


def _read(kind: type[T] | Form[T], found: Json, where: str, *, lenient: bool = False) -> T:
    try:
        return decode(kind, found, lenient=lenient)
    except Malformed as error:
        if not error.place:
            raise BadArchive(f"{where} makes no sense: {error.complaint}") from error
        key = re.split(r"[.\[]", error.place, maxsplit=1)[0]
        said = error.complaint if key == error.place else error
        raise BadArchive(f"{where} has no sensible {key!r}: {said}") from error


# The manifest


@dataclass(frozen=True)
class MemberInfo:
    """The size of a member in bytes, the number of its pieces, and its digest."""

    size: _Size
    count: _Size
    digest: _Digest


@dataclass(frozen=True)
class Origin:
    """The origin of the changes. *owner* is the user and group that the workspace belonged to."""

    name: str
    workspace: bytes
    created: datetime
    exported: datetime
    version: str
    owner: tuple[int, int]
    policy: dict[str, object]


@dataclass(frozen=True)
class Manifest:
    """The whole manifest; *files* and *file_bytes* are the number and the total size of the contents."""

    origin: Origin
    changes: MemberInfo
    baseline: MemberInfo
    saved: MemberInfo
    files: int
    file_bytes: int

    @property
    def size(self) -> int:
        """The number of bytes of all members, without headers."""
        return self.changes.size + self.baseline.size + self.saved.size + self.file_bytes


def _listing(part: MemberInfo) -> MemberInfo:
    if part.size > LONGEST_LISTING:
        raise Malformed(f"expected at most {LONGEST_LISTING} bytes")
    return part


def _absolute(path: bytes) -> bytes:
    if not path.startswith(b"/") or b"\0" in path:
        raise Malformed("expected an absolute path")
    return path


def _moment(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise Malformed("expected a time with its offset")
    return time


_Listing = Annotated[MemberInfo, Check(_listing)]
_Moment = Annotated[datetime, text_form(datetime.isoformat, _moment)]


@dataclass(frozen=True)
class _WrittenVersion:
    format: int


@dataclass(frozen=True)
class _WrittenOwner:
    uid: _Id
    gid: _Id


@dataclass(frozen=True)
class _WrittenFiles:
    count: _Size
    size: _Size


@dataclass(frozen=True)
class _WrittenManifest:
    format: int
    kind: str
    name: str
    workspace: Annotated[bytes, Check(_absolute)]
    created: _Moment
    exported: _Moment
    version: str
    owner: _WrittenOwner
    policy: Json
    changes: _Listing
    baseline: _Listing
    saved: MemberInfo
    files: _WrittenFiles


def dump_manifest(manifest: Manifest) -> bytes:
    origin = manifest.origin
    written = _WrittenManifest(
        FORMAT,
        KIND,
        origin.name,
        origin.workspace,
        origin.created,
        origin.exported,
        origin.version,
        _WrittenOwner(*origin.owner),
        origin.policy,
        manifest.changes,
        manifest.baseline,
        manifest.saved,
        _WrittenFiles(manifest.files, manifest.file_bytes),
    )
    return json.dumps(encode(written), indent=1).encode("ascii") + b"\n"


def parse_manifest(text: bytes) -> Manifest:
    """Read the text of `dump_manifest`; the caller checks the policy."""
    where = "its manifest"
    found = _loaded(text, where)
    if "format" not in found or found.get("kind") != KIND:
        raise BadArchive("it is no archive of sandboxfs")
    version = _read(_WrittenVersion, found, where, lenient=True).format
    if version != FORMAT:
        raise BadArchive(
            f"it has the unknown format {version}; this version of sandboxfs reads format {FORMAT}",
            hint="use the version of sandboxfs that wrote it, or a newer one",
        )
    read = _read(_WrittenManifest, found, where)
    owner = (read.owner.uid, read.owner.gid)
    return Manifest(
        Origin(read.name, read.workspace, read.created, read.exported, read.version, owner, read.policy),
        read.changes,
        read.baseline,
        read.saved,
        read.files.count,
        read.files.size,
    )
