"""What is known of an inode that its extended attributes cannot say?

Three kinds of facts, each a tiny entry in the index directory beside the upper, written with one system call:

- `h<ino>`  a hard link to the upper file that stands for a lower file of several names: all its names lead
  here
- `i<host ino>`  a symlink whose text is the inode number shown for an upper symlink, FIFO, socket or device,
  which can carry no `user.` attribute
- `n<ino>`  a symlink whose text is how many names of a lower file the sandbox took away

An empty index, the usual case, costs nothing.
"""

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.staging import Staging


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

    # Numbers of what cannot carry attributes

    def number(self, host_ino: int) -> int:
        """The inode number to show for the upper object, or 0."""
        return self._read(b"i%x" % host_ino)

    def set_number(self, host_ino: int, ino: int) -> None:
        self._write(b"i%x" % host_ino, ino)

    def drop_number(self, host_ino: int) -> None:
        """Forget the number; also called for a new upper object, as the host uses its numbers again."""
        if self._used:
            self._drop(b"i%x" % host_ino)

    # Link counts

    def names_lost(self, ino: int) -> int:
        """How many names of the lower file the sandbox has taken away."""
        return self._read(b"n%x" % ino)

    def lose_name(self, ino: int) -> None:
        self._write(b"n%x" % ino, self.names_lost(ino) + 1)

    def regain_name(self, ino: int) -> None:
        """Note that one of the names taken away is back; never fewer than none are away."""
        lost = self.names_lost(ino)
        if lost > 1:
            self._write(b"n%x" % ino, lost - 1)
        elif lost:
            self._drop(b"n%x" % ino)

    def regain_all_names(self) -> None:
        """Note that no name of any lower file is away any more."""
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
