"""How is a directory tree written down, made, and compared?

A tree is a dict from path to node; a trailing slash makes a directory, and plain text is a file's content:

    {"src/a.py": "x", "link": Symlink("src"), "empty/": Directory(mode=0o700), "b.py": HardLink("src/a.py")}

`capture` looks at everything that can be told without opening a device or a FIFO, except access times.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

# Everything a tree is built with is this old, so that a time which moved is told at a glance.
LONG_AGO = 1_500_000_000_123_456_789


@dataclass(frozen=True)
class File:
    content: bytes | str = b""
    mode: int = 0o644
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Directory:
    mode: int = 0o755
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Symlink:
    target: str | bytes


@dataclass(frozen=True)
class HardLink:
    """A further name of a file that stands earlier in the tree."""

    path: str


@dataclass(frozen=True)
class Fifo:
    mode: int = 0o644


@dataclass(frozen=True)
class Sock:
    """A socket file; nobody listens."""

    mode: int = 0o644


Node = str | bytes | File | Directory | Symlink | HardLink | Fifo | Sock
Tree = Mapping[str | bytes, Node]


def build(root: Path, tree: Tree) -> Path:
    """Make *tree* below *root*, which may exist, with every time LONG_AGO."""
    root.mkdir(parents=True, exist_ok=True)
    modes: list[tuple[bytes, int]] = []
    for name, node in tree.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name).rstrip(b"/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.fsencode(name).endswith(b"/") and node == "":
            node = Directory()
        _make(os.fsencode(root), path, node)
        if isinstance(node, Directory):
            modes.append((path, node.mode))
    # Modes of directories come last: one without write permission would refuse its own content.
    for path, mode in modes:
        os.chmod(path, mode)
    for folder, subfolders, names in os.walk(os.fsencode(root), topdown=False):
        for name in (*subfolders, *names):
            os.utime(os.path.join(folder, name), ns=(LONG_AGO, LONG_AGO), follow_symlinks=False)
    os.utime(root, ns=(LONG_AGO, LONG_AGO))
    return root


def _make(root: bytes, path: bytes, node: Node) -> None:
    match node:
        case str() | bytes():
            _make(root, path, File(node))
        case File():
            content = node.content.encode() if isinstance(node.content, str) else node.content
            Path(os.fsdecode(path)).write_bytes(content)
            _set_xattrs(path, node.xattrs)
            os.chmod(path, node.mode)
        case Directory():
            os.makedirs(path, exist_ok=True)
            _set_xattrs(path, node.xattrs)
        case Symlink():
            os.symlink(os.fsencode(node.target), path)
        case HardLink():
            os.link(os.path.join(root, os.fsencode(node.path)), path, follow_symlinks=False)
        case Fifo():
            os.mkfifo(path)
            os.chmod(path, node.mode)
        case Sock():
            os.mknod(path, stat.S_IFSOCK | node.mode)
            os.chmod(path, node.mode)


def _set_xattrs(path: bytes, xattrs: Mapping[str, bytes]) -> None:
    for name, value in xattrs.items():
        os.setxattr(path, name, value)


@dataclass(frozen=True)
class State:
    """All that can be told about one name. Directories have no size: it is the filesystem's own affair."""

    kind: str
    mode: str
    uid: int
    gid: int
    size: int
    digest: str
    target: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    mtime_ns: int
    ctime_ns: int
    nlink: int
    rdev: int


Snapshot = Mapping[bytes, State]

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


def capture(root: Path) -> Snapshot:
    """The state of *root* (as b".") and of everything below it on the same filesystem."""
    top = os.fsencode(root)
    device = os.lstat(top).st_dev
    return {os.path.relpath(path, top): _state(path) for path in _walk(top, device)}


def _walk(path: bytes, device: int) -> Iterator[bytes]:
    yield path
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
        for name in sorted(os.listdir(path)):
            yield from _walk(os.path.join(path, name), device)


def _state(path: bytes) -> State:
    status = os.lstat(path)
    kind = _KINDS[stat.S_IFMT(status.st_mode)]
    return State(
        kind=kind,
        mode=oct(stat.S_IMODE(status.st_mode)),
        uid=status.st_uid,
        gid=status.st_gid,
        size=0 if kind == "directory" else status.st_size,
        digest=_digest(path) if kind == "file" else "",
        target=os.readlink(path) if kind == "symlink" else b"",
        xattrs=_xattrs(path),
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        nlink=status.st_nlink,
        rdev=status.st_rdev,
    )


def _digest(path: bytes) -> str:
    """A checksum of the data and of where it lies, which takes no time for holes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        return "not readable"
    digest = hashlib.sha256()
    try:
        for start, end in _data_ranges(fd):
            digest.update(b"%d-%d:" % (start, end))
            for offset in range(start, end, 1 << 20):
                digest.update(os.pread(fd, min(1 << 20, end - offset), offset))
    finally:
        os.close(fd)
    return digest.hexdigest()


def _data_ranges(fd: int) -> Iterator[tuple[int, int]]:
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def _xattrs(path: bytes) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(path, follow_symlinks=False)
        return tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(names))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EACCES, errno.EPERM):
            return ()
        raise


def assert_same_tree(
    found: Snapshot, expected: Snapshot, *, ignoring: frozenset[str] = frozenset(), what: str = "the tree"
) -> None:
    """Fail with one line for each name and property in which the two differ, *ignoring* some properties."""
    differences = list(_differences(found, expected, ignoring))
    if differences:
        raise AssertionError(f"{what} is not what it should be:\n" + "\n".join(differences[:40]))


def _differences(found: Snapshot, expected: Snapshot, ignoring: frozenset[str]) -> Iterator[str]:
    for path in sorted(found.keys() | expected.keys()):
        shown = path.decode(errors="backslashreplace")
        if path not in expected:
            yield f"  {shown}: a {found[path].kind} that should not be there"
        elif path not in found:
            yield f"  {shown}: the {expected[path].kind} is missing"
        else:
            for item in fields(State):
                is_, should = getattr(found[path], item.name), getattr(expected[path], item.name)
                if is_ != should and item.name not in ignoring:
                    yield f"  {shown}: {item.name} is {is_!r}, should be {should!r}"
