"""Reading an untrusted archive into an empty upper and baseline.

Inode numbers, owners and permissions in an archive come from another machine. Numbers are given anew, the
same new number for the same old one. The owner of the workspace there becomes the owner of the workspace
here. A copy of the workspace made under another umask has other permissions for group and others: where the
sandbox did not change permissions, those of the copy are taken.

Parents come first: an entry is made only in a directory made before, and only once. Directories stay open to
their owner until all their entries are made; modes and times come last, from the inside out.

Nothing in an archive is believed. The manifest announces the members, and any member more, less or different
is refused. Every name is made in a directory that the archive itself made before, through descriptors that
follow no symlink. The caller makes the directories to be filled, and removes them when an error is raised.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from sandboxfs.archive.format import (
    BASELINE,
    CHANGES,
    DIGEST_SIZE,
    FILES,
    LONGEST,
    MANIFEST,
    SAVED,
    ArchiveEntry,
    EntryType,
    MemberInfo,
    parse_baseline_entry,
    parse_entry,
    parse_manifest,
)
from sandboxfs.archive.tar import ArchiveSource, BadArchive, Member, Members
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import parted, quoted
from sandboxfs.upper import marks
from sandboxfs.upper.baseline import BaselineEntry
from sandboxfs.upper.baseline_log import write_log, write_pack
from sandboxfs.upper.marks import Index

# The tag of random inode numbers, which no file of a workspace has: see docs/state-format.md.
_RANDOM = 126 << 56
# The permissions that a umask takes away.
_OTHERS = 0o077

Look = Callable[[bytes], os.stat_result | None]
"""Returns the status of the workspace's object at a path."""


class HostMapping:
    """Translation of an archive's values to this host: all baseline entries first, then the entries."""

    def __init__(self, look: Look, owner: tuple[int, int], *, may_give_away: bool) -> None:
        """Adapt to the workspace that *look* reads, from a workspace that *owner* owned.

        Unless we *may_give_away* files, every file is ours.
        """
        self._look = look
        self._numbers: dict[int, int] = {}
        # By the archive's inode number: permissions there and here, where they differ.
        self._permissions: dict[int, tuple[int, int]] = {}
        root = look(b"") if may_give_away else None
        self._users = {} if root is None else {owner[0]: root.st_uid}
        self._groups = {} if root is None else {owner[1]: root.st_gid}
        self._us = None if may_give_away else (os.geteuid(), os.getegid())

    def baseline_entry(self, seen: BaselineEntry) -> BaselineEntry:
        uid, gid = self._owner(seen.uid, seen.gid)
        return replace(seen, mode=self._mode(seen), uid=uid, gid=gid, number=self._number(seen.number))

    def entry(self, entry: ArchiveEntry) -> ArchiveEntry:
        uid, gid = self._owner(entry.uid, entry.gid)
        there, here = self._permissions.get(entry.number, (entry.mode, entry.mode))
        mode = here if entry.mode == there else entry.mode
        return replace(entry, mode=mode, uid=uid, gid=gid, number=self._number(entry.number))

    def _mode(self, seen: BaselineEntry) -> int:
        status = self._look(seen.path)
        if status is None or (status.st_mode ^ seen.mode) & ~_OTHERS:
            return seen.mode
        if status.st_mode != seen.mode:
            self._permissions[seen.number] = stat.S_IMODE(seen.mode), stat.S_IMODE(status.st_mode)
        return status.st_mode

    def _owner(self, uid: int, gid: int) -> tuple[int, int]:
        return self._us or (self._users.get(uid, uid), self._groups.get(gid, gid))

    def _number(self, number: int) -> int:
        """Return the new number for *number*, 0 for none."""
        if not number:
            return 0
        known = self._numbers.get(number)
        if known is None:
            known = self._numbers[number] = _RANDOM | secrets.randbelow(1 << 56)
        return known


_SPECIAL = {EntryType.FIFO: stat.S_IFIFO, EntryType.SOCKET: stat.S_IFSOCK}
_LINKABLE = {EntryType.FILE, EntryType.SYMLINK, EntryType.FIFO, EntryType.SOCKET}
# Attributes that this filesystem or our privileges cannot hold are left out, as they are by copy-up.
_NO_SUCH_SUPPORT = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL}
_HOLE = 1 << 16


class Unpacker:
    """Creation of an archive's entries in the upper."""

    def __init__(self, upper: HostDir, index: Index, whiteouts: marks.Whiteouts) -> None:
        self._upper = upper
        self._index = index
        self._whiteouts = whiteouts
        self._types: dict[bytes, EntryType] = {}
        self._directories: list[ArchiveEntry] = []
        self._links: list[ArchiveEntry] = []
        self._redirects: set[bytes] = set()
        self._parent: tuple[bytes, HostDir] | None = None

    def close(self) -> None:
        if self._parent is not None:
            self._parent[1].close()
            self._parent = None

    def make(self, entry: ArchiveEntry) -> None:
        """Make *entry*; a regular file only reserves its name until its content comes."""
        self._check(entry)
        self._types[entry.path] = entry.type
        if entry.type is EntryType.DIRECTORY:
            self._make_directory(entry)
        elif entry.type is EntryType.LINK:
            self._links.append(entry)
        elif entry.type is not EntryType.FILE:
            self._make_other(entry)

    def _check(self, entry: ArchiveEntry) -> None:
        if entry.path in self._types:
            raise BadArchive(f"it lists {quoted(entry.path)} twice")
        if not entry.path:
            if entry.type is not EntryType.DIRECTORY:
                raise BadArchive("its root is no directory")
            if entry.opaque or entry.redirect is not None:
                raise BadArchive("its root is not that of a workspace")
            return
        above = self._types.get(parted(entry.path)[0])
        if above is not EntryType.DIRECTORY:
            what = "nothing" if above is None else f"a {above.value}"
            raise BadArchive(f"it lists {quoted(entry.path)} in {what}")
        if entry.type is EntryType.LINK and self._types.get(entry.target) not in _LINKABLE:
            raise BadArchive(f"it links {quoted(entry.path)} to what is no file in it")
        if entry.redirect is not None:
            if not entry.redirect or entry.redirect in self._redirects:
                raise BadArchive(f"it has {quoted(entry.path)} moved from where nothing can come from")
            self._redirects.add(entry.redirect)

    def check_root(self) -> None:
        if b"" not in self._types:
            raise BadArchive("it has no root")

    # Making

    def _make_directory(self, entry: ArchiveEntry) -> None:
        self._directories.append(entry)
        parent, name = self._place(entry.path)
        if entry.path:
            parent.mkdir(name, 0o700)
        if entry.opaque:
            marks.set_opaque(parent, name)
        elif entry.redirect is not None:
            marks.set_redirect(parent, name, entry.redirect)
        if entry.number:
            marks.write_record(parent, name, marks.InodeRecord(entry.number, 0))
        self._set_attributes(parent, name, entry)

    def _make_other(self, entry: ArchiveEntry) -> None:
        parent, name = self._place(entry.path)
        if entry.type is EntryType.WHITEOUT:
            self._whiteouts.announce(parent)
            self._whiteouts.create(parent, name)
            return
        if entry.type is EntryType.SYMLINK:
            parent.symlink(name, entry.target)
        else:
            parent.mknod(name, _SPECIAL[entry.type] | 0o600, 0)
        made = parent.stat(name)
        if entry.number and made is not None:
            self._index.set_number(made.st_ino, entry.number)
        self._dress(parent, name, entry)

    def fill(self, entry: ArchiveEntry, chunks: Iterable[bytes]) -> None:
        """Make a regular file that was listed, with its content."""
        parent, name = self._place(entry.path)
        fd = parent.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            os.ftruncate(fd, entry.size)
            at = 0
            for chunk in chunks:
                _write(fd, chunk, at)
                at += len(chunk)
        finally:
            os.close(fd)
        if entry.number:
            marks.write_record(parent, name, marks.InodeRecord(entry.number, 0))
        self._dress(parent, name, entry)

    def finish(self) -> None:
        """Make the links, and give directories their modes and times."""
        for link in self._links:
            above, name = parted(link.target)
            with self._upper.descend(above) as source:
                parent, link_name = self._place(link.path)
                source.link(name, parent, link_name)
        for entry in reversed(self._directories):
            parent, name = self._place(entry.path)
            self._own(parent, name or b".", entry)

    # Attributes

    def _dress(self, parent: HostDir, name: bytes, entry: ArchiveEntry) -> None:
        self._set_attributes(parent, name, entry)
        self._own(parent, name, entry)

    def _set_attributes(self, parent: HostDir, name: bytes, entry: ArchiveEntry) -> None:
        for attribute, value in entry.xattrs:
            try:
                parent.setxattr(name, attribute, value)
            except OSError as error:
                if error.errno not in _NO_SUCH_SUPPORT:
                    raise

    def _own(self, parent: HostDir, name: bytes, entry: ArchiveEntry) -> None:
        if os.geteuid() == 0:
            parent.chown(name, entry.uid, entry.gid)
        if entry.type is not EntryType.SYMLINK:
            # After the owner, because a change of owner clears the set-id bits.
            parent.chmod(name, entry.mode)
        parent.set_times(name, entry.mtime_ns, entry.mtime_ns)

    def _place(self, path: bytes) -> tuple[HostDir, bytes]:
        """Return the open directory of *path*, and its name there; for the root, itself and no name."""
        if not path:
            return self._upper, b""
        above, name = parted(path)
        if self._parent is None or self._parent[0] != above:
            self.close()
            self._parent = above, self._upper.descend(above)
        return self._parent[1], name


def _write(fd: int, data: bytes, at: int) -> None:
    """Write *data* at *at*, leaving holes for long runs of zeros."""
    for start in range(0, len(data), _HOLE):
        view = memoryview(data)[start : start + _HOLE]
        if view.nbytes == _HOLE and not any(view):
            continue
        while view:
            written = os.pwrite(fd, view, at + start)
            start += written
            view = view[written:]


_LONGEST_LINE = 8 << 20
# The headers of a member, without its name, and the end of a tar that another program repacked.
_OVERHEAD = 2560


@dataclass
class Report:
    """The result of unpacking; *special* are paths with rights that a commit keeps only on request."""

    entries: int = 0
    special: list[bytes] = field(default_factory=list)


class Archive:
    """An archive being read: the manifest at once, the rest by `unpack`."""

    def __init__(self, source: ArchiveSource, *, limit: int) -> None:
        """Read the manifest, which may announce at most *limit* bytes."""
        self._members = Members(source)
        member = self._next(MANIFEST)
        if member.size > LONGEST:
            raise BadArchive("its manifest is too long")
        self.manifest = parse_manifest(b"".join(self._chunks()))
        if self.manifest.size > limit:
            raise BadArchive(
                f"it holds {self.manifest.size} bytes, more than the {limit} that are allowed",
                hint="allow more with --max-size",
            )
        source.allow(self.manifest.size + self.manifest.changes.size + _OVERHEAD * (self.manifest.files + 8))

    def unpack(
        self, unpacker: Unpacker, baseline: HostDir, adapter: HostMapping, progress: Callable[[int], None]
    ) -> Report:
        """Fill an empty upper and a *baseline* without a log."""
        report = Report()
        contents: list[ArchiveEntry] = []
        write_log(baseline, map(adapter.baseline_entry, self._baseline_entries()))
        write_pack(baseline, self._saved())
        for line in self._lines(CHANGES, self.manifest.changes):
            entry = adapter.entry(parse_entry(line))
            unpacker.make(entry)
            report.entries += 1
            if entry.type is EntryType.FILE:
                contents.append(entry)
            if _is_special(entry):
                report.special.append(entry.path)
        unpacker.check_root()
        self._contents(contents, unpacker, progress)
        unpacker.finish()
        return report

    def _baseline_entries(self) -> Iterator[BaselineEntry]:
        seen: set[bytes] = set()
        end = count = 0
        for line in self._lines(BASELINE, self.manifest.baseline):
            baseline_entry = parse_baseline_entry(line)
            start, length = baseline_entry.saved or (end, 0)
            if baseline_entry.path in seen or start != end or (length and baseline_entry.digest is None):
                raise BadArchive(f"what it says of {quoted(baseline_entry.path)} makes no sense")
            seen.add(baseline_entry.path)
            end += length
            count += baseline_entry.saved is not None
            yield baseline_entry
        if (end, count) != (self.manifest.saved.size, self.manifest.saved.count):
            raise BadArchive("it holds less, or more, than it says")

    def _saved(self) -> Iterator[bytes]:
        self._expect(SAVED, self.manifest.saved.size)
        wrong = "it is damaged: what it saved of the workspace is not what it was"
        return self._checked(self.manifest.saved.digest, wrong)

    def _contents(
        self, entries: list[ArchiveEntry], unpacker: Unpacker, progress: Callable[[int], None]
    ) -> None:
        announced = self.manifest.files, self.manifest.file_bytes
        if (len(entries), sum(entry.size for entry in entries)) != announced:
            raise BadArchive("it holds less, or more, than it says")
        for entry in entries:
            self._expect(FILES + entry.path, entry.size)
            wrong = f"it is damaged: {quoted(entry.path)} is not what it was"
            unpacker.fill(entry, self._checked(entry.digest, wrong))
            progress(entry.size)
        if (more := self._members.next()) is not None:
            raise BadArchive(f"it has the unexpected member {quoted(more.name)}")

    # Members

    def _next(self, name: bytes) -> Member:
        member = self._members.next()
        if member is None:
            raise BadArchive("it ends too early")
        if member.name != name:
            raise BadArchive(f"it has the member {quoted(member.name)} where {quoted(name)} belongs")
        return member

    def _expect(self, name: bytes, size: int) -> None:
        if self._next(name).size != size:
            raise BadArchive(f"its member {quoted(name)} is not as large as it says")

    def _chunks(self) -> Iterator[bytes]:
        while chunk := self._members.read():
            yield chunk

    def _checked(self, digest: bytes, wrong: str) -> Iterator[bytes]:
        """Yield the chunks of a member, and refuse any digest but *digest* at the end."""
        found = blake2b(digest_size=DIGEST_SIZE)
        for chunk in self._chunks():
            found.update(chunk)
            yield chunk
        if found.digest() != digest:
            raise BadArchive(wrong)

    def _lines(self, name: bytes, part: MemberInfo) -> Iterator[bytes]:
        """Yield the lines of a member; their number and digest are checked at the end."""
        self._expect(name, part.size)
        wrong = f"it is damaged: {quoted(name)} is not what it was"
        count = 0
        rest = b""
        for chunk in self._checked(part.digest, wrong):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise BadArchive("one of its lines is too long")
            count += len(lines)
            yield from lines
        if rest or count != part.count:
            raise BadArchive(wrong)


def _is_special(entry: ArchiveEntry) -> bool:
    if entry.type is EntryType.FILE and entry.mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    return any(name == b"security.capability" for name, _ in entry.xattrs)
