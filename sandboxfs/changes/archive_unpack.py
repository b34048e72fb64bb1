"""How is each entry of an archive made in an empty upper?

Parents come first: an entry is made only where a directory was made before it, and only once. Directories
are open to their owner until everything is in them; modes and times come last, from the inside out.
"""

import errno
import os
import stat
from collections.abc import Iterable

from sandboxfs.changes.archive_entry import Entry, Type
from sandboxfs.changes.archive_stream import BadArchive
from sandboxfs.changes.tree import split
from sandboxfs.layers import marks
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.index import Index
from sandboxfs.paths import quoted

_SPECIAL = {Type.FIFO: stat.S_IFIFO, Type.SOCKET: stat.S_IFSOCK}
_LINKABLE = {Type.FILE, Type.SYMLINK, Type.FIFO, Type.SOCKET}
# What this filesystem or our privileges cannot hold is left out, as it is when a file is copied up.
_NO_SUCH_SUPPORT = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL}
_HOLE = 1 << 16


class Unpacker:
    """Makes entries in the upper."""

    def __init__(self, upper: HostDir, index: Index, whiteouts: marks.Whiteouts) -> None:
        self._upper = upper
        self._index = index
        self._whiteouts = whiteouts
        self._types: dict[bytes, Type] = {}
        self._directories: list[Entry] = []
        self._links: list[Entry] = []
        self._redirects: set[bytes] = set()
        self._parent: tuple[bytes, HostDir] | None = None

    def close(self) -> None:
        if self._parent is not None:
            self._parent[1].close()
            self._parent = None

    def make(self, entry: Entry) -> None:
        """Make *entry*, or, of a regular file, take note of it until its content comes."""
        self._check(entry)
        self._types[entry.path] = entry.type
        if entry.type is Type.DIRECTORY:
            self._make_directory(entry)
        elif entry.type is Type.LINK:
            self._links.append(entry)
        elif entry.type is not Type.FILE:
            self._make_other(entry)

    def _check(self, entry: Entry) -> None:
        if entry.path in self._types:
            raise BadArchive(f"it lists {quoted(entry.path)} twice")
        if not entry.path:
            if entry.type is not Type.DIRECTORY:
                raise BadArchive("its root is no directory")
            if entry.opaque or entry.redirect is not None:
                raise BadArchive("its root is not that of a workspace")
            return
        above = self._types.get(split(entry.path)[0])
        if above is not Type.DIRECTORY:
            what = "nothing" if above is None else f"a {above.value}"
            raise BadArchive(f"it lists {quoted(entry.path)} in {what}")
        if entry.type is Type.LINK and self._types.get(entry.target) not in _LINKABLE:
            raise BadArchive(f"it links {quoted(entry.path)} to what is no file in it")
        if entry.redirect is not None:
            if not entry.redirect or entry.redirect in self._redirects:
                raise BadArchive(f"it has {quoted(entry.path)} moved from where nothing can come from")
            self._redirects.add(entry.redirect)

    def check_root(self) -> None:
        if b"" not in self._types:
            raise BadArchive("it has no root")

    # Making

    def _make_directory(self, entry: Entry) -> None:
        self._directories.append(entry)
        parent, name = self._place(entry.path)
        if entry.path:
            parent.mkdir(name, 0o700)
        if entry.opaque:
            marks.set_opaque(parent, name)
        elif entry.redirect is not None:
            marks.set_redirect(parent, name, entry.redirect)
        if entry.number:
            marks.write_record(parent, name, marks.Record(entry.number, 0))
        self._set_attributes(parent, name, entry)

    def _make_other(self, entry: Entry) -> None:
        parent, name = self._place(entry.path)
        if entry.type is Type.WHITEOUT:
            self._whiteouts.announce(parent)
            self._whiteouts.create(parent, name)
            return
        if entry.type is Type.SYMLINK:
            parent.symlink(name, entry.target)
        else:
            parent.mknod(name, _SPECIAL[entry.type] | 0o600, 0)
        made = parent.stat(name)
        if entry.number and made is not None:
            self._index.set_number(made.st_ino, entry.number)
        self._dress(parent, name, entry)

    def fill(self, entry: Entry, chunks: Iterable[bytes]) -> None:
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
            marks.write_record(parent, name, marks.Record(entry.number, 0))
        self._dress(parent, name, entry)

    def finish(self) -> None:
        """Make the further names, and give directories their modes and times."""
        for link in self._links:
            above, name = split(link.target)
            with self._upper.descend(above) as source:
                parent, link_name = self._place(link.path)
                source.link(name, parent, link_name)
        for entry in reversed(self._directories):
            parent, name = self._place(entry.path)
            self._own(parent, name or b".", entry)

    # Attributes

    def _dress(self, parent: HostDir, name: bytes, entry: Entry) -> None:
        self._set_attributes(parent, name, entry)
        self._own(parent, name, entry)

    def _set_attributes(self, parent: HostDir, name: bytes, entry: Entry) -> None:
        for attribute, value in entry.xattrs:
            try:
                parent.setxattr(name, attribute, value)
            except OSError as error:
                if error.errno not in _NO_SUCH_SUPPORT:
                    raise

    def _own(self, parent: HostDir, name: bytes, entry: Entry) -> None:
        if os.geteuid() == 0:
            parent.chown(name, entry.uid, entry.gid)
        if entry.type is not Type.SYMLINK:
            # After the owner, whose change clears the set-id bits.
            parent.chmod(name, entry.mode)
        parent.set_times(name, entry.mtime_ns, entry.mtime_ns)

    def _place(self, path: bytes) -> tuple[HostDir, bytes]:
        """The open directory that *path* is in, and its name there; for the root, itself and no name."""
        if not path:
            return self._upper, b""
        above, name = split(path)
        if self._parent is None or self._parent[0] != above:
            self.close()
            self._parent = above, self._upper.descend(above)
        return self._parent[1], name


def _write(fd: int, data: bytes, at: int) -> None:
    """Write *data* at *at*, leaving holes where it is nothing but zeros for long."""
    for start in range(0, len(data), _HOLE):
        view = memoryview(data)[start : start + _HOLE]
        if view.nbytes == _HOLE and not any(view):
            continue
        while view:
            written = os.pwrite(fd, view, at + start)
            start += written
            view = view[written:]
