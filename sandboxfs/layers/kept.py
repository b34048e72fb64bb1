"""What has left the upper on behalf of one record, and can come back? Its directory `upper/`.

Entries lie there under the names that the operations gave them. Names with a dot in front are notes: what an
operation of several steps is about to do, so that done again after a crash it does, and tells, the same.
"""

import json
import os
from hashlib import blake2b

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.settlement import Identity
from sandboxfs.layers.staging import Staging


class Kept:
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

    def expects(self, status: os.stat_result, expect: Identity) -> bool:
        """Whether an object of the upper is still in the state that is expected."""
        found = Identity.of(status)
        if (found.ino, found.size, found.mtime_ns) != (expect.ino, expect.size, expect.mtime_ns):
            return False
        if found.ctime_ns == expect.ctime_ns:
            return True
        # Two changes of our own making: keeping another name of the file, and looking at the marks of a file
        # that even its owner may not read.
        return self.links(expect.ino) > 0 or (not status.st_mode & 0o400 and os.geteuid() != 0)

    # How many names of an upper file are kept

    def links(self, ino: int) -> int:
        """How many entries are names of the upper's inode *ino*."""
        if self._links is None:
            self._links = _inodes(self.directory)
        return self._links.get(ino, 0)

    def came(self, ino: int, change: int = 1) -> None:
        """Note that a name of *ino* was moved here, or with -1 away."""
        if self._links is not None:
            self._links[ino] = self._links.get(ino, 0) + change

    def names_left(self, link: os.stat_result) -> int:
        """How many names the upper has of the indexed file that has the status *link* in the index."""
        left = link.st_nlink - 1 - self.links(link.st_ino)
        # What other records kept of it is no name of the upper either.
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
    """How many names each inode has in a directory."""
    found: dict[int, int] = {}
    for entry in directory.entries():
        found[entry.inode()] = found.get(entry.inode(), 0) + 1
    return found


def _note_name(kind: bytes, path: bytes) -> bytes:
    return b".%s-%s" % (kind, blake2b(path, digest_size=16).hexdigest().encode())
