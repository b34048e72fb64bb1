"""Staging (the work directory) and the inode index: the two directories beside the upper.

In staging, the work directory, entries are made before they appear in the upper. An entry that takes more
than one call to make (a copied file, a marked directory) is made there under a name of its own and moved into
the upper with one rename, so that the upper never shows half of it, also not after `kill -9`.

The inode index holds facts about upper inodes that extended attributes cannot hold. Three kinds of facts,
each a tiny entry, written with one system call:

- `h<ino>`  a hard link to the upper file that stands for a lower file of several names: all its names lead to
  this link
- `i<host ino>`  a symlink whose text is the inode number shown for an upper symlink, FIFO, socket or device,
  which can carry no `user.` attribute
- `n<ino>`  a symlink whose text is how many names of a lower file the sandbox took away

An empty index, the usual case, costs nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from sandboxfs.hostfs.copy import DEFAULT_LIST, remove_access_lists
from sandboxfs.hostfs.directory import Held, HostDir


class Staging:
    """The work directory of one upper."""

    def __init__(self, directory: HostDir) -> None:
        self.directory = directory
        self._serial = count(1)

    def clear(self) -> None:
        """Remove leftovers of an earlier session, and access lists that every new entry would inherit."""
        remove_access_lists(Held(self.directory.fd), DEFAULT_LIST)
        for name in self.directory.names():
            self.directory.remove_tree(name)

    def fresh_name(self) -> bytes:
        return b"%x" % next(self._serial)

    @contextmanager
    def name(self) -> Iterator[bytes]:
        """A free name; an entry that still has it at the end is removed."""
        name = self.fresh_name()
        try:
            yield name
        finally:
            self.directory.remove_tree(name)

    def absorb(self, directory: HostDir, name: bytes) -> None:
        """Remove *name* with all below it; it disappears at once."""
        with self.name() as staged:
            directory.rename(name, self.directory, staged)


class Index:
    """The index directory of one upper. Inode numbers are those of the view unless called host numbers."""

    def __init__(self, directory: HostDir, staging: Staging) -> None:
        self.directory = directory
        self._staging = staging
        self._used = next(directory.entries(), None) is not None

    # Hard links

    @staticmethod
    def link_name(ino: int) -> bytes:
        return b"h%x" % ino

    def has_link(self, ino: int) -> bool:
        return self._used and self.directory.stat(self.link_name(ino)) is not None

    def add_link(self, ino: int, directory: HostDir, name: bytes) -> None:
        """Index the upper (or staged) file *name*."""
        self._used = True
        directory.link(name, self.directory, self.link_name(ino))

    def replace_link(self, ino: int, directory: HostDir, name: bytes) -> None:
        """Index *name* instead of whatever is indexed now, at once."""
        self._used = True
        with self._staging.name() as staged:
            directory.link(name, self._staging.directory, staged)
            self._staging.directory.rename(staged, self.directory, self.link_name(ino))

    def drop_link(self, ino: int) -> None:
        self._drop(self.link_name(ino))

    # Numbers of objects that cannot carry attributes

    def number(self, host_ino: int) -> int:
        """The inode number to show for the upper object, or 0."""
        return self._read(b"i%x" % host_ino)

    def set_number(self, host_ino: int, ino: int) -> None:
        self._write(b"i%x" % host_ino, ino)

    def drop_number(self, host_ino: int) -> None:
        """Forget the number; also called for a new upper object, as the host reuses its inode numbers."""
        if self._used:
            self._drop(b"i%x" % host_ino)

    # Link counts

    def names_lost(self, ino: int) -> int:
        """The number of names of the lower file that the sandbox has taken away."""
        return self._read(b"n%x" % ino)

    def lose_name(self, ino: int) -> None:
        self._write(b"n%x" % ino, self.names_lost(ino) + 1)

    def regain_name(self, ino: int) -> None:
        """Count one of the names taken away as back; the count never goes below none."""
        lost = self.names_lost(ino)
        if lost > 1:
            self._write(b"n%x" % ino, lost - 1)
        elif lost:
            self._drop(b"n%x" % ino)

    def regain_all_names(self) -> None:
        """Reset the counts: no name of any lower file is away any more."""
        for name in self.directory.names() if self._used else ():
            if name.startswith(b"n"):
                self._drop(name)

    def _read(self, name: bytes) -> int:
        if not self._used:
            return 0
        try:
            return int(self.directory.readlink(name))
        except FileNotFoundError:
            return 0

    def _write(self, name: bytes, value: int) -> None:
        self._used = True
        with self._staging.name() as staged:
            self._staging.directory.symlink(staged, b"%d" % value)
            self._staging.directory.rename(staged, self.directory, name)

    def _drop(self, name: bytes) -> None:
        try:
            self.directory.unlink(name)
        except FileNotFoundError:
            pass
