"""Trees of the host by relative path, with no link followed: reading, inventory, and copying as a whole.

Directories are opened by their path from the root, beneath it and through no symlink, and kept open as long
as they are among the last few that were asked for. A caller that knows which directory it must be passes the
inode number; another directory in its place counts as missing.

A tree is one layer seen from its top. The tree keeps a few directories open, because the next request is
usually near; a path of any depth costs no more descriptors. No symlink is followed on the way: a path through
a symlink, or through any other object that is no directory, leads nowhere. A `DirTree` writes nothing.

A whole tree is carried to where no rename reaches by copying. Directories that deny access to their owner are
unlocked for the moment; depth costs no descriptors.
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from sandboxfs.hostfs import copy
from sandboxfs.hostfs.directory import HostDir, unlocked
from sandboxfs.hostfs.durable import Syncer
from sandboxfs.hostfs.identity import ObjectIdentity, fingerprint
from sandboxfs.paths import joined, parted

T = TypeVar("T")

_MOST = 48
# A file or a symlink is in the way.
_NO_WAY = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV}


class OpenDirectories:
    """The directories of one tree, opened as they are needed. The caller must not close them."""

    def __init__(self, root: HostDir) -> None:
        self.root = root
        self._open: OrderedDict[bytes, tuple[HostDir, int]] = OrderedDict()

    def open(self, path: bytes, ino: int | None = None) -> HostDir:
        """The directory at *path*; FileNotFoundError when it is missing, or does not have the number *ino*.

        The result stays open until a few dozen others have been asked for.
        """
        found = self._open.get(path)
        if found is None:
            directory = self._descend(path)
            found = directory, directory.own_stat().st_ino
            self._open[path] = found
            if len(self._open) > _MOST:
                self._open.popitem(last=False)[1][0].close()
        else:
            self._open.move_to_end(path)
        if ino is not None and found[1] != ino:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return found[0]

    def find(self, path: bytes, ino: int | None = None) -> HostDir | None:
        """The directory at *path*, or None where `open` would fail because it is not there."""
        try:
            return self.open(path, ino)
        except OSError as error:
            if error.errno in _NO_WAY:
                return None
            raise

    def in_it(self, path: bytes, action: Callable[[HostDir], T]) -> T:
        """Run *action* in the directory at *path*, also if its mode denies access to its owner."""
        directory = self.open(path)
        try:
            return action(directory)
        except PermissionError:
            return unlocked(directory.own_path(), directory.own_stat().st_mode, lambda: action(directory))

    def _descend(self, path: bytes) -> HostDir:
        folder, _, last = path.rpartition(b"/")
        near = self._open.get(folder)
        if near is not None:
            # One step from an open parent: opening from the top each time is quadratic in a deep tree.
            return _entered(near[0], last)
        try:
            return self.root.descend(path)
        except PermissionError:
            pass
        # Directories on the way may deny access to their owner.
        here = self.root.again()
        for name in path.split(b"/"):
            with here as above:
                here = _entered(above, name)
        return here

    def forget(self) -> None:
        """Close everything: paths may lead elsewhere from now on."""
        while self._open:
            self._open.popitem()[1][0].close()

    def __enter__(self) -> "OpenDirectories":
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()


def _entered(above: HostDir, name: bytes) -> HostDir:
    try:
        return above.child(name)
    except PermissionError:
        return unlocked(above.own_path(), above.own_stat().st_mode, lambda: above.child(name))


_HELD = 32
_CHUNK = 1 << 20
# No entry, another object than a directory on the way, or no symlink any more.
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE}
_VANISHED = _NOWHERE | {errno.EINVAL, errno.ENODATA}


class Unreadable(Exception):
    """The content of one version of a change cannot be read; the text says why."""


class ChangedWhileRead(Unreadable):
    """A file changed during a read, and again during the next one; `data` is the last content read."""

    def __init__(self, data: bytes) -> None:
        super().__init__("still changing")
        self.data = data


def vanished(error: OSError) -> bool:
    """Whether an entry that was just listed is gone, or is another object by now."""
    return error.errno in _VANISHED


class DirTree:
    """One layer. *ours*: directories and files that lock their owner out may be unlocked for a moment."""

    def __init__(self, top: HostDir, *, ours: bool = False) -> None:
        self._top = top
        self._ours = ours
        self._held: OrderedDict[bytes, HostDir] = OrderedDict()

    def close(self) -> None:
        self.let_go()
        self._top.close()

    def let_go(self) -> None:
        """Close every open directory: names may have moved since."""
        for directory in self._held.values():
            directory.close()
        self._held.clear()

    def directory(self, path: bytes) -> HostDir:
        """Return the open directory at *path*, to be used before the next call to this tree."""
        if not path:
            return self._top
        held = self._held.get(path)
        if held is not None:
            self._held.move_to_end(path)
            return held
        opened = self._open_directory(path)
        self._held[path] = opened
        if len(self._held) > _HELD:
            self._held.popitem(last=False)[1].close()
        return opened

    def stat(self, path: bytes) -> os.stat_result | None:
        """The status of the object at *path*, or None; of the top itself for an empty path."""
        if not path:
            return self._top.own_stat()
        parent, name = parted(path)
        try:
            directory = self.directory(parent)
            try:
                return directory.stat(name)
            except PermissionError:
                return self.reaching(directory, lambda: directory.stat(name))
        except OSError as error:
            if error.errno in _NOWHERE:
                return None
            raise

    def readlink(self, path: bytes) -> bytes:
        parent, name = parted(path)
        return self.directory(parent).readlink(name)

    def xattrs(self, path: bytes, wanted: Callable[[bytes], bool]) -> dict[bytes, bytes]:
        """The extended attributes of *path* whose names are *wanted*; none where there can be none."""
        parent, name = parted(path) if path else (b"", b"")
        directory = self.directory(parent)
        try:
            return {key: directory.getxattr(name, key) for key in directory.listxattr(name) if wanted(key)}
        except OSError:
            return {}

    def entries(self, path: bytes) -> "Iterator[os.DirEntry[str]]":
        """List the directory at *path*; nothing where there is none."""
        try:
            directory = self.directory(path)
            listing = self.reaching(directory, directory.open_for_listing)
        except OSError as error:
            if error.errno in _NOWHERE:
                return
            raise
        try:
            with os.scandir(listing) as entries:
                yield from entries
        finally:
            os.close(listing)

    def open(self, path: bytes) -> int:
        """Open the file at *path* for reading."""
        parent, name = parted(path)
        try:
            directory = self.directory(parent)
            try:
                return directory.open_quietly(name, os.O_RDONLY)
            except PermissionError:
                return self.reaching(directory, lambda: self._open_file(directory, name))
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from error

    def read(self, path: bytes) -> bytes:
        """Return the content of the regular file at *path*, as it was at one moment.

        A file that changes meanwhile is read once more; if it changes again, `ChangedWhileRead` is raised.
        """
        return self.read_with_status(path)[0]

    def read_with_status(self, path: bytes) -> tuple[bytes, os.stat_result]:
        """Read, and return also the status of the file at that moment."""
        fd = self.open(path)
        try:
            data, status, still = _read_once(fd)
            if not still:
                data, status, still = _read_once(fd)
        except OSError as error:
            raise Unreadable(error.strerror or str(error)) from error
        finally:
            os.close(fd)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("not a file any more")
        if not still:
            raise ChangedWhileRead(data)
        return data, status

    def _open_directory(self, path: bytes) -> HostDir:
        parent, name = parted(path)
        held = self._held.get(parent) if parent else self._top
        if held is not None:
            return self.reaching(held, lambda: held.child(name))
        try:
            return self._top.descend(path)
        except PermissionError:
            if not self._ours:
                raise
        return self._open_locked(path)

    def _open_locked(self, path: bytes) -> HostDir:
        """Open a directory below others that may not be searched."""
        here = self._top.again()
        for name in path.split(b"/"):
            with here as above:
                here = self.reaching(above, partial(above.child, name))
        return here

    def _open_file(self, directory: HostDir, name: bytes) -> int:
        try:
            return directory.open_quietly(name, os.O_RDONLY)
        except PermissionError:
            status = directory.stat(name)
            if not self._ours or status is None or not stat.S_ISREG(status.st_mode):
                raise
            return unlocked(
                directory.path_of(name), status.st_mode, lambda: directory.open_quietly(name, os.O_RDONLY)
            )

    def reaching(self, directory: HostDir, action: Callable[[], T]) -> T:
        """Run *action*, which reads an entry of *directory*; a program may have locked that directory."""
        try:
            return action()
        except PermissionError:
            if not self._ours:
                raise
            return unlocked(directory.own_path(), directory.own_stat().st_mode, action)


def _read_once(fd: int) -> tuple[bytes, os.stat_result, bool]:
    """Return a file's content, its status, and whether the file stayed unchanged meanwhile."""
    before = os.fstat(fd)
    data = _read_whole(fd, before.st_size)
    after = os.fstat(fd)
    return data, after, len(data) == after.st_size and fingerprint(before) == fingerprint(after)


def _read_whole(fd: int, size: int) -> bytes:
    data = os.pread(fd, size + 1, 0)
    if len(data) >= size:
        return data
    # The file shrank, or is larger than the kernel reads at once.
    whole = bytearray(data)
    while part := os.pread(fd, _CHUNK, len(whole)):
        whole += part
    return bytes(whole)


_PART = b".part"

Same = Callable[[ObjectIdentity, os.stat_result], bool]
"""Whether an object is unchanged."""


def contents(top: HostDir) -> Iterator[tuple[bytes, os.stat_result]]:
    """Everything below *top* by its path from there, directories before their entries."""
    with OpenDirectories(top) as ground:
        pending = [b""]
        while pending:
            here = pending.pop()
            for name, status in ground.in_it(here, _listed):
                path = joined(here, name)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)


def _listed(directory: HostDir) -> list[tuple[bytes, os.stat_result]]:
    found = ((name, directory.stat(name)) for name in directory.names())
    return [(name, status) for name, status in found if status is not None]


def first_difference(
    top: HostDir, expected: Mapping[bytes, ObjectIdentity], same: Same = ObjectIdentity.is_untouched
) -> bytes | None:
    """A path below *top* that is not *expected*, or not the *same*; None when all are."""
    seen = 0
    for path, status in contents(top):
        identity = expected.get(path)
        if identity is None or not same(identity, status):
            return path
        seen += 1
    if seen == len(expected):
        return None
    found = {path for path, _ in contents(top)}
    return next((path for path in expected if path not in found), None)


def carry(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> None:
    """Move *name* to a free name on any filesystem; a repetition after a crash has the same result."""
    if brought(source, name, target, new_name):
        source.remove_tree(name)


def brought(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> bool:
    """Move or copy *name* to a free name on any filesystem; True for a copy, whose original remains."""
    if target.stat(new_name) is not None:
        return True
    try:
        source.rename(name, target, new_name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return False
    target.remove_tree(new_name + _PART)
    copy_tree(source, name, target, new_name + _PART)
    target.rename(new_name + _PART, target, new_name)
    return True


def remove_copy(target: HostDir, new_name: bytes) -> None:
    """Remove a copy made by `brought`, whole or in part."""
    target.remove_tree(new_name + _PART)
    target.remove_tree(new_name)


def copy_tree(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> None:
    """Make a replica of *name* and all below it, on disk when this returns."""
    status = source.stat(name)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with Syncer() as syncer:
        if not stat.S_ISDIR(status.st_mode):
            _copy(source, name, target, status, syncer, new_name)
            return
        target.mkdir(new_name, 0o700)
        with source.child(name) as top, target.child(new_name) as made:
            _copy_inside(top, made, syncer)
        copy.dress(target, new_name, copy.own_attributes(source, name, status, copy.of_the_host))


def _copy_inside(top: HostDir, made: HostDir, syncer: Syncer) -> None:
    directories: list[tuple[bytes, os.stat_result]] = []
    with OpenDirectories(top) as originals, OpenDirectories(made) as copies:
        for path, status in contents(top):
            folder, name = parted(path)
            if stat.S_ISDIR(status.st_mode):
                copies.open(folder).mkdir(name, 0o700)
                directories.append((path, status))
                continue
            act = partial(_copy, name=name, target=copies.open(folder), status=status, syncer=syncer)
            originals.in_it(folder, act)
        for path, status in reversed(directories):
            folder, name = parted(path)
            attributes = copy.own_attributes(originals.open(folder), name, status, copy.of_the_host)
            copy.dress(copies.open(folder), name, attributes)


def _copy(
    source: HostDir,
    name: bytes,
    target: HostDir,
    status: os.stat_result,
    syncer: Syncer,
    new_name: bytes | None = None,
) -> None:
    new_name = new_name or name
    if stat.S_ISREG(status.st_mode):
        copy.copy_file(source, name, target, new_name, syncer, copy.of_the_host)
    else:
        copy.make_other(source, name, target, new_name, copy.of_the_host)
