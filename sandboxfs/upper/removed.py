"""Removed entries: what left an upper for one commit record, and how it comes back.

Removed entries have the names that the operations gave them. Names with a dot in front are notes: the plan of
an operation of several steps, so that the operation, repeated after a crash, does and reports the same. A
directory's former attributes are such a note, and an undo knows them by it.

An entry comes back by one rename where the upper has none or a whiteout, by an exchange where the upper has
the entry to be replaced, which is kept in turn. A file that stands for a lower file of several names gets its
index entry before its name, and is replaced through the index: all its names change at the same moment.
"""

import json
import os
import stat
from hashlib import blake2b

from sandboxfs.hostfs.copy import Attributes, attributes_at, change, of_the_sandbox, own_attributes
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sandboxfs.upper import marks
from sandboxfs.upper.edits import (
    ABSENT,
    BUSY,
    CHANGED,
    DONE,
    EditOutcome,
    RestoreEntry,
    SetAttributes,
    UpperIdentity,
    path_bytes,
    refused,
    text,
)
from sandboxfs.upper.marks import Staging
from sandboxfs.upper.unmounted import NOWHERE, UnmountedUpper, UpperPlace


class RemovedEntries:
    """The directory of the record numbered *record* among *commits*; FileNotFoundError without one."""

    def __init__(self, commits: HostDir, record: int, staging: Staging) -> None:
        self.directory = commits.descend(b"%d/upper" % record)
        self.record = record
        self._commits = commits
        self._staging = staging
        self._links: dict[int, int] | None = None

    def close(self) -> None:
        self.directory.close()

    def stat(self, name: bytes) -> os.stat_result | None:
        return self.directory.stat(name)

    def expects(self, status: os.stat_result, expect: UpperIdentity) -> bool:
        """Whether an object of the upper is still in the expected state."""
        found = UpperIdentity.of(status)
        if (found.ino, found.size, found.mtime_ns) != (expect.ino, expect.size, expect.mtime_ns):
            return False
        if found.ctime_ns == expect.ctime_ns:
            return True
        # Two changes of sandboxfs' own: keeping another name of the file, and reading the marks of a file
        # that even its owner may not read.
        return self.links(expect.ino) > 0 or (not status.st_mode & 0o400 and os.geteuid() != 0)

    # Kept names of upper files

    def links(self, ino: int) -> int:
        """The number of kept entries that are names of the upper's inode *ino*."""
        if self._links is None:
            self._links = _inodes(self.directory)
        return self._links.get(ino, 0)

    def came(self, ino: int, change: int = 1) -> None:
        """Note that a name of *ino* was moved to the record, or with -1 away."""
        if self._links is not None:
            self._links[ino] = self._links.get(ino, 0) + change

    def names_left(self, link: os.stat_result) -> int:
        """The number of names in the upper of the indexed file with the status *link* in the index."""
        left = link.st_nlink - 1 - self.links(link.st_ino)
        # Names kept by other records are no names of the upper either.
        return left and left - self._links_elsewhere(link.st_ino)

    def _links_elsewhere(self, ino: int) -> int:
        found = 0
        for name in self._commits.names():
            if not name.isdigit() or int(name) == self.record:
                continue
            try:
                directory = self._commits.descend(name + b"/upper")
            except (FileNotFoundError, NotADirectoryError):
                continue
            with directory:
                found += _inodes(directory).get(ino, 0)
        return found

    # Notes

    def note(self, kind: bytes, path: bytes) -> dict[str, object] | None:
        """The note that an operation on *path* left."""
        try:
            fd = self.directory.open(_note_name(kind, path), os.O_RDONLY)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            found: object = json.loads(file.read())
        return found if isinstance(found, dict) else None

    def write_note(self, kind: bytes, path: bytes, note: dict[str, object]) -> None:
        work = self._staging.directory
        with self._staging.name() as staged:
            with open(work.open(staged, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(json.dumps(note, separators=(",", ":")).encode())
            work.rename(staged, self.directory, _note_name(kind, path))

    def drop_note(self, kind: bytes, path: bytes) -> None:
        try:
            self.directory.unlink(_note_name(kind, path))
        except FileNotFoundError:
            pass


def _inodes(directory: HostDir) -> dict[int, int]:
    """The number of names of each inode in a directory."""
    found: dict[int, int] = {}
    for entry in directory.entries():
        found[entry.inode()] = found.get(entry.inode(), 0) + 1
    return found


def _note_name(kind: bytes, path: bytes) -> bytes:
    return b".%s-%s" % (kind, blake2b(path, digest_size=16).hexdigest().encode())


_NOTE = b"dress"


def redress(tree: UnmountedUpper, kept: RemovedEntries, operation: SetAttributes) -> EditOutcome:
    """Do *operation*; OSError where one of the directories is not there."""
    noted = kept.note(_NOTE, operation.path)
    try:
        upper = tree.upper.descend(operation.path)
    except OSError as error:
        if noted is None or operation.back or error.errno not in NOWHERE:
            raise
        # The operation was done, and the directory was removed or replaced since.
        return DONE
    with upper as directory:
        own = own_attributes(directory, b"", directory.own_stat(), of_the_sandbox)
        if operation.back:
            if noted is not None:
                _change(directory, own, _read(noted, own))
                kept.drop_note(_NOTE, operation.path)
            return DONE
        lower = tree.lower_of(operation.path)
        if lower is None:
            return refused(ABSENT)
        with tree.workspace.descend(lower) as source:
            if noted is None:
                kept.write_note(_NOTE, operation.path, _written(own))
            before = attributes_at(source, b"", source.own_stat(), of_the_sandbox)
            _change(directory, own, before)
    return DONE


def _change(directory: HostDir, own: Attributes, new: Attributes) -> None:
    """Give *directory* the *new* attributes, whatever its *own* mode: changing some takes permission."""
    try:
        change(directory.fd, own, new)
    except PermissionError:
        if own.mode & 0o700 == 0o700:
            raise
        directory.chmod_own(own.mode | 0o700)
        try:
            change(directory.fd, own, new)
        except OSError:
            directory.chmod_own(own.mode)
            raise


def _written(own: Attributes) -> dict[str, object]:
    xattrs = {text(name): value.hex() for name, value in own.xattrs}
    return {"mode": own.mode, "uid": own.uid, "gid": own.gid, "xattrs": xattrs}


def _read(noted: dict[str, object], own: Attributes) -> Attributes:
    """The attributes of a note; ValueError when it has none."""
    match noted:
        case {"mode": int(mode), "uid": int(uid), "gid": int(gid), "xattrs": dict(xattrs)}:
            values = ((path_bytes(str(name)), bytes.fromhex(str(value))) for name, value in xattrs.items())
            return Attributes(mode, uid, gid, own.atime_ns, own.mtime_ns, tuple(values))
        case _:
            raise ValueError("no attributes")


_OLD = b".old"


class EntryRestorer:
    """Puts kept entries back."""

    def __init__(self, tree: UnmountedUpper) -> None:
        self._tree = tree
        self._index = tree.index

    def put(self, kept: RemovedEntries, put: RestoreEntry) -> EditOutcome:
        source = kept.stat(put.keep)
        if source is None:
            return self._put_before(put)
        if self._exchanged(kept, put, source):
            return DONE
        with self._tree.place(put.path) as place:
            why = self._objection(kept, put, place)
            if why is not None:
                return refused(why)
        self._tree.make(os.path.dirname(put.path))
        with self._tree.place(put.path) as place:
            if place.directory is None:
                return refused(ABSENT)
            if self._record(place).nlink or self._resumes(kept, put):
                self._replace_indexed(kept, put, source, place.directory, place.name)
            elif self._dressed(kept, put, source, place):
                self._bring(kept, put, source, place.directory, place)
            else:
                return refused(CHANGED)
        return DONE

    def _put_before(self, put: RestoreEntry) -> EditOutcome:
        """The outcome without a kept entry: an entry in the upper has been put back earlier."""
        with self._tree.place(put.path) as place:
            there = place.status is not None and not self._tree.covers(place)
        return DONE if there else refused(ABSENT)

    def _exchanged(self, kept: RemovedEntries, put: RestoreEntry, source: os.stat_result) -> bool:
        """Whether the kept entry was exchanged already; the replaced entry is then put away."""
        if self._tree.whiteouts.covers(kept.directory, put.keep, source):
            kept.directory.unlink(put.keep)
            return True
        if isinstance(put.expect, UpperIdentity) and source.st_ino == put.expect.ino:
            kept.directory.rename(put.keep, kept.directory, put.keep + _OLD, RENAME_NOREPLACE)
            return True
        return False

    def _objection(self, kept: RemovedEntries, put: RestoreEntry, place: UpperPlace) -> str | None:
        """Why the present entry must not be replaced."""
        covered = self._tree.covers(place)
        if not isinstance(put.expect, UpperIdentity):
            expected = covered or (put.expect is None and place.status is None)
            return None if expected else CHANGED
        if place.status is None:
            return None if self._resumes(kept, put) else CHANGED
        if covered or not kept.expects(place.status, put.expect):
            return CHANGED
        return BUSY if self._in_use(kept, place) else None

    def _in_use(self, kept: RemovedEntries, place: UpperPlace) -> bool:
        """Whether the entry is in use beyond its name: a directory with content, a file with other names."""
        if place.directory is None:
            return False
        if place.is_dir:
            with place.directory.child(place.name) as inner:
                return not inner.is_empty()
        record = self._record(place)
        link = self._index.directory.stat(self._index.link_name(record.ino)) if record.nlink else None
        return link is not None and kept.names_left(link) > 1

    def _record(self, place: UpperPlace) -> marks.InodeRecord:
        if place.directory is None or not place.is_file or self._tree.covers(place):
            return marks.NO_RECORD
        return marks.read_record(place.directory, place.name)

    def _dressed(
        self, kept: RemovedEntries, put: RestoreEntry, source: os.stat_result, place: UpperPlace
    ) -> bool:
        """Give a regular file its number and index entry before it appears; False if that is impossible."""
        if not stat.S_ISREG(source.st_mode):
            return True
        record = marks.read_record(kept.directory, put.keep)
        if not record.ino and (replaced := self._record(place)).ino:
            # A file that takes another one's place is the same file to programs.
            marks.write_record(kept.directory, put.keep, replaced)
        if record.nlink == 0:
            return True
        if put.number is not None and put.number != record.ino:
            record = marks.InodeRecord(put.number, record.nlink)
            marks.write_record(kept.directory, put.keep, record)
        link = self._index.directory.stat(self._index.link_name(record.ino))
        if link is None:
            self._index.add_link(record.ino, kept.directory, put.keep)
        return link is None or link.st_ino == source.st_ino

    def _bring(
        self,
        kept: RemovedEntries,
        put: RestoreEntry,
        source: os.stat_result,
        directory: HostDir,
        place: UpperPlace,
    ) -> None:
        """The change itself: one rename, or an exchange whose other half is put away."""
        exchanges = place.status is not None
        if self._tree.covers(place) and not stat.S_ISDIR(source.st_mode):
            directory.quietly(lambda: kept.directory.rename(put.keep, directory, place.name))
        else:
            flags = RENAME_EXCHANGE if exchanges else RENAME_NOREPLACE
            directory.quietly(lambda: kept.directory.rename(put.keep, directory, place.name, flags))
            if place.status is not None:
                self._exchanged(kept, put, place.status)
                kept.came(place.status.st_ino)
        kept.came(source.st_ino, -1)

    # Replacing an indexed file

    def _resumes(self, kept: RemovedEntries, put: RestoreEntry) -> bool:
        """Whether an earlier attempt has put the indexed entry away."""
        if not isinstance(put.expect, UpperIdentity):
            return False
        old = kept.stat(put.keep + _OLD)
        return old is not None and old.st_ino == put.expect.ino

    def _replace_indexed(
        self, kept: RemovedEntries, put: RestoreEntry, source: os.stat_result, directory: HostDir, name: bytes
    ) -> None:
        old = put.keep + _OLD
        if not self._resumes(kept, put):
            # Without its name in the upper, the file still shows through the index.
            directory.quietly(lambda: directory.rename(name, kept.directory, old, RENAME_NOREPLACE))
            kept.came(put.expect.ino if isinstance(put.expect, UpperIdentity) else 0)
        record = marks.read_record(kept.directory, old)
        if stat.S_ISREG(source.st_mode):
            marks.write_record(kept.directory, put.keep, record)
            self._index.replace_link(record.ino, kept.directory, put.keep)
        else:
            self._index.drop_link(record.ino)
        directory.quietly(lambda: kept.directory.rename(put.keep, directory, name, RENAME_NOREPLACE))
        kept.came(source.st_ino, -1)
