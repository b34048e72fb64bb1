"""Is each request answered with what the filesystem says, in the way that the kernel takes it?

A socket stands for the device; the bytes of a request are overwritten as soon as it was dealt with.
"""

import errno
import os
import stat
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
import trio
from outcome import Outcome, capture

from sandboxfs.fuse import handlers
from sandboxfs.fuse.dispatch import MOST_THREADS, Dispatcher
from sandboxfs.fuse.handlers import MOST_STREAMS
from sandboxfs.fuse.protocol import Opcode
from sandboxfs.overlay.control_dir import NAME, ControlDir
from sandboxfs.overlay.copy_up import LARGE
from sandboxfs.overlay.filesystem import (
    ROOT_INODE,
    AttributeChange,
    Caller,
    Deferred,
    Entry,
    OpenedFile,
    Syncs,
)
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.claims import fails_with, is_whiteout
from tests.support.tree import File, Symlink, Tree, build
from tests.unit.fuse.kernel import (
    HUNG,
    Attr,
    AttrOut,
    EntryOut,
    Kernel,
    Listed,
    OpenOut,
    Reply,
    attributes_of,
    entry_of,
    listed_in,
    opened_of,
    reply_of,
    request,
)

A_SECOND = 10**9
ME = os.getuid(), os.getgid(), os.getpid()
FILES = [f"file{number}" for number in range(10)]
ODD = b"\xff\xfe odd\n'name"
TREE: Tree = {
    **{f"many/{name}": name for name in FILES},
    "file": "some text",
    "hollow/": "",
    "link": Symlink("file"),
    "tagged": File("tagged", xattrs={"user.colour": b"red", "user.shape": b"round"}),
}
# Flags of the answer to OPEN.
DIRECT_IO, KEEP_CACHE = 1, 2
# What SETATTR changes.
MODE, UID, GID, SIZE, ATIME, MTIME, FH, ATIME_NOW, MTIME_NOW = (1 << bit for bit in range(9))
NOREPLACE = 1
Task = Callable[[], Awaitable[object]]
RenameIt = Callable[["Mounted", bytes, int, bytes], bytes]


UNANSWERED = Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.NOTIFY_REPLY


class Owing:
    """What is done after each answer."""

    def __init__(self, mounted: "Mounted") -> None:
        self._mounted = mounted

    def __len__(self) -> int:
        return 1

    def settle(self) -> None:
        self._mounted.afterwards()


class Mounted:
    """An overlay that is asked as the kernel asks."""

    def __init__(self, place: Path, watches: int, *, every_listing: bool = False) -> None:
        self.lower = build(place / "workspace", TREE)
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.upper = parts[0]
        self.fs = Overlay(OverlayPaths([self.lower], *parts), watches=watches)
        self.kernel = Kernel()
        self.given: list[tuple[int, bytes]] = []
        self.takes_content = True
        self.to_be_listed_again: list[int] = []
        self.may_forget = Event()
        self.may_forget.set()
        self.begun: list[Task] = []
        self.afterwards: Callable[[], None] = lambda: None
        self.dispatcher = Dispatcher(
            self.fs,
            self.kernel.number,
            trio.to_thread.run_sync,
            self.begun.append,
            self,
            Owing(self),
            every_listing=every_listing,
        )
        self._room = memoryview(bytearray(1 << 18))
        self.unique = 1 << 40

    def give(self, ino: int, content: bytes) -> bool:
        self.given.append((ino, content))
        return self.takes_content

    def forget_attributes(self, ino: int) -> None:
        """Nobody remembers any."""

    def forget_listing(self, ino: int) -> None:
        self.to_be_listed_again.append(ino)
        assert self.may_forget.wait(HUNG)

    def begin(
        self, opcode: int, body: bytes = b"", *, ino: int = ROOT_INODE, caller: tuple[int, int, int] = ME
    ) -> None:
        """Ask, whatever is answered."""
        self.unique += 2
        asked = request(opcode, body, ino=ino, unique=self.unique, caller=caller)
        self._room[: len(asked)] = asked
        self.dispatcher.answer(self._room[: len(asked)])
        self._room[:] = b"\xaa" * len(self._room)

    def reply(self) -> Reply | None:
        """The answer to the last request, if there is one."""
        told = self.kernel.told()
        if told is None:
            return None
        return self._last(told)

    def _last(self, told: bytes) -> Reply:
        found = reply_of(told)
        assert found.unique == self.unique
        assert self.kernel.told() is None
        return found

    def ask(
        self, opcode: int, body: bytes = b"", *, ino: int = ROOT_INODE, caller: tuple[int, int, int] = ME
    ) -> bytes:
        """What the answer says; OSError when it is a refusal."""
        self.begin(opcode, body, ino=ino, caller=caller)
        return _said(self.reply())

    def finish(self) -> bytes:
        """What the answer says that is given when a task has done the work."""
        assert self.reply() is None
        (task,) = self.begun
        self.begun.clear()
        trio.run(task)
        return _said(self.reply())

    def waited_for(self) -> bytes:
        """What the answer says that is given when a thread has done the work."""
        assert not self.begun
        return _said(self._last(self.kernel.waited_for()))

    def look(self, path: str | bytes) -> EntryOut:
        """Look up every name on the way; what the last leads to."""
        entry, ino = None, ROOT_INODE
        for name in os.fsencode(path).split(b"/"):
            entry = entry_of(self.ask(Opcode.LOOKUP, name + b"\0", ino=ino))
            ino = entry.nodeid
        assert entry is not None
        return entry

    def ino(self, path: str | bytes) -> int:
        return self.look(path).nodeid if path else ROOT_INODE

    def open(self, path: str, flags: int) -> OpenOut:
        return opened_of(self.ask(Opcode.OPEN, struct.pack("=II", flags, 0), ino=self.ino(path)))

    def opendir(self, path: str) -> OpenOut:
        return opened_of(self.ask(Opcode.OPENDIR, struct.pack("=II", 0, 0), ino=self.ino(path)))

    def readdir(self, ino: int, start: int = 0, room: int = 1 << 17, handle: int = 0) -> list[Listed]:
        self.begin(Opcode.READDIRPLUS, place(handle, start, room), ino=ino)
        body = self.waited_for()
        assert len(body) <= room
        return list(listed_in(body))

    def list(self, path: str) -> list[Listed]:
        """Read a directory to its end, as programs do."""
        ino = self.ino(path)
        found = self.readdir(ino)
        assert self.readdir(ino, found[-1].position) == []
        return found

    def knows(self, ino: int) -> bool:
        """Whether an inode has references."""
        return ino in self.fs.inodes()

    def change(self, ino: int, *, valid: int, **values: int) -> AttrOut:
        return attributes_of(self.ask(Opcode.SETATTR, setattr_in(valid, **values), ino=ino))

    def close(self) -> None:
        self.fs.close()
        self.kernel.close()


def _said(reply: Reply | None) -> bytes:
    assert reply is not None, "no answer"
    if reply.error:
        assert reply.body == b""
        raise OSError(-reply.error, os.strerror(-reply.error))
    return reply.body


def place(handle: int, offset: int, size: int) -> bytes:
    """struct fuse_read_in."""
    return struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0)


def write_in(handle: int, offset: int, size: int, data: bytes, flags: int = os.O_RDWR) -> bytes:
    return struct.pack("=QQIIQII", handle, offset, size, 0, 0, flags, 0) + data


def setattr_in(valid: int, **values: int) -> bytes:
    def value(name: str) -> int:
        # What is not valid says nothing.
        return values.get(name, 99)

    return struct.pack(
        "=IIQQQqqqIIIIIIII",
        *(valid, 0, value("fh"), value("size"), 99, value("atime"), value("mtime"), 99),
        *(value("atimensec"), value("mtimensec"), 99, value("mode"), 99, value("uid"), value("gid"), 99),
    )


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    os.umask(0)
    made = Mounted(tmp_path, watches=0)
    yield made
    made.close()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Mounted]:
    os.umask(0)
    made = Mounted(tmp_path, watches=100)
    yield made
    made.close()


def broken(*_: object, **__: object) -> object:
    raise RuntimeError("a bug")


# Looking


def test_a_name_that_is_there_leads_to_its_inode(mounted: Mounted) -> None:
    found = mounted.look("file")
    status = (mounted.lower / "file").stat()
    assert found.nodeid == found.attr.ino != 0
    assert (found.attr.size, found.attr.mode) == (9, status.st_mode)
    assert found.attr.mtime * A_SECOND + found.attr.mtimensec == status.st_mtime_ns


def test_a_name_that_is_absent_is_so_briefly(mounted: Mounted) -> None:
    found = mounted.look("nothing")
    assert (found.nodeid, found.entry_valid) == (0, A_SECOND // 2)


def test_a_name_that_is_absent_where_the_host_is_watched_is_so_for_long(watched: Mounted) -> None:
    found = watched.look("nothing")
    assert (found.nodeid, found.entry_valid) == (0, 3600 * A_SECOND)


def test_names_may_have_any_bytes(mounted: Mounted) -> None:
    (mounted.lower / os.fsdecode(ODD)).write_text("odd")
    assert mounted.look(ODD).attr.size == 3


def test_what_is_forgotten_as_often_as_it_was_looked_up_is_gone(mounted: Mounted) -> None:
    ino = mounted.ino("file")
    assert mounted.ino("file") == ino
    for known in (True, False):
        mounted.begin(Opcode.FORGET, struct.pack("=Q", 1), ino=ino)
        assert mounted.reply() is None
        assert mounted.knows(ino) is known


def test_many_are_forgotten_at_once_each_as_often_as_it_says(mounted: Mounted) -> None:
    once, twice, kept = mounted.ino("file"), mounted.ino("tagged"), mounted.ino("link")
    mounted.ino("tagged")
    mounted.ino("link")
    forgotten = [(once, 1), (twice, 2), (kept, 1)]
    body = struct.pack("=II", 3, 0) + b"".join(struct.pack("=QQ", *one) for one in forgotten)
    mounted.begin(Opcode.BATCH_FORGET, body)
    assert mounted.reply() is None
    assert [mounted.knows(ino) for ino in (once, twice, kept)] == [False, False, True]


@pytest.mark.parametrize(
    ("opcode", "body"),
    [(Opcode.FORGET, struct.pack("=Q", 1)), (Opcode.BATCH_FORGET, struct.pack("=IIQQ", 1, 0, 1, 1))],
)
def test_a_bug_in_forgetting_is_logged_and_nobody_is_answered(
    mounted: Mounted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    opcode: int,
    body: bytes,
) -> None:
    monkeypatch.setattr(mounted.fs, "forget", broken)
    mounted.begin(opcode, body)
    assert mounted.reply() is None
    assert "bug in" in caplog.text


def test_attributes_are_those_of_the_file(mounted: Mounted) -> None:
    ino = mounted.ino("file")
    found = attributes_of(mounted.ask(Opcode.GETATTR, struct.pack("=IIQ", 0, 0, 0), ino=ino))
    assert found == (A_SECOND // 2, mounted.look("file").attr)


def test_a_link_is_read(mounted: Mounted) -> None:
    assert mounted.ask(Opcode.READLINK, ino=mounted.ino("link")) == b"file"


def getxattr(mounted: Mounted, name: bytes, room: int) -> bytes:
    body = struct.pack("=II", room, 0) + name + b"\0"
    return mounted.ask(Opcode.GETXATTR, body, ino=mounted.ino("tagged"))


def listxattr(mounted: Mounted, room: int) -> bytes:
    return mounted.ask(Opcode.LISTXATTR, struct.pack("=II", room, 0), ino=mounted.ino("tagged"))


def test_an_extended_attribute_is_read_when_there_is_room_for_it(mounted: Mounted) -> None:
    assert getxattr(mounted, b"user.shape", 0) == struct.pack("=II", 5, 0)
    assert getxattr(mounted, b"user.shape", 5) == b"round"
    assert getxattr(mounted, b"user.shape", 1000) == b"round"
    with fails_with(errno.ERANGE):
        getxattr(mounted, b"user.shape", 4)
    with fails_with(errno.ENODATA):
        getxattr(mounted, b"user.nothing", 0)


def test_the_names_of_extended_attributes_are_listed_when_there_is_room_for_them(mounted: Mounted) -> None:
    size = len(b"user.colour\0user.shape\0")
    assert listxattr(mounted, 0) == struct.pack("=II", size, 0)
    assert set(listxattr(mounted, size).split(b"\0")) == {b"user.colour", b"user.shape", b""}
    with fails_with(errno.ERANGE):
        listxattr(mounted, size - 1)


def test_how_much_room_there_is_is_that_of_the_upper(mounted: Mounted) -> None:
    body = mounted.ask(Opcode.STATFS)
    *_, files, _, bsize, namemax, frsize = struct.unpack_from("=QQQQQIII", body)
    there = os.statvfs(mounted.upper)
    assert len(body) == 80
    assert struct.unpack_from("=Q", body) == (there.f_blocks,)
    assert (files, bsize, namemax, frsize) == (there.f_files, there.f_bsize, there.f_namemax, there.f_frsize)


# TCGETS, by which programs find out whether a file is a terminal.
TERMINAL = struct.pack("=QIIQII", 0, 0, 0x5401, 0, 0, 0)


def test_no_file_is_a_terminal(mounted: Mounted) -> None:
    with fails_with(errno.ENOTTY):
        mounted.ask(Opcode.IOCTL, TERMINAL, ino=mounted.ino("file"))


# Changing


def setxattr_in(name: bytes, value: bytes, flags: int = 0, more: int | None = None) -> bytes:
    """The body in its short form, or with further flags in its long one."""
    longer = b"" if more is None else struct.pack("=I4x", more)
    return struct.pack("=II", len(value), flags) + longer + name + b"\0" + value


@pytest.mark.parametrize("more", [None, 0, 1])
@pytest.mark.parametrize("value", [b"", b"\0", b"some\0bytes\xff", bytes(9)])
def test_an_extended_attribute_is_set_to_any_bytes_and_removed(
    mounted: Mounted, value: bytes, more: int | None
) -> None:
    ino = mounted.ino("file")
    assert mounted.ask(Opcode.SETXATTR, setxattr_in(b"user.colour", value, more=more), ino=ino) == b""
    assert os.getxattr(mounted.upper / "file", "user.colour") == value
    assert mounted.ask(Opcode.REMOVEXATTR, b"user.colour\0", ino=ino) == b""
    with fails_with(errno.ENODATA):
        mounted.ask(Opcode.REMOVEXATTR, b"user.colour\0", ino=ino)


@pytest.mark.parametrize(
    ("name", "flags", "number"),
    [
        (b"user.colour", os.XATTR_CREATE, errno.EEXIST),
        (b"user.none", os.XATTR_REPLACE, errno.ENODATA),
    ],
)
def test_an_extended_attribute_that_may_not_be_set_is_not_and_nothing_is_copied(
    mounted: Mounted, name: bytes, flags: int, number: int
) -> None:
    with fails_with(number):
        mounted.ask(Opcode.SETXATTR, setxattr_in(name, b"blue", flags), ino=mounted.ino("tagged"))
    assert not (mounted.upper / "tagged").exists()


def test_an_extended_attribute_is_set_where_the_flags_allow_it(mounted: Mounted) -> None:
    ino = mounted.ino("tagged")
    mounted.ask(Opcode.SETXATTR, setxattr_in(b"user.colour", b"blue", os.XATTR_REPLACE), ino=ino)
    mounted.ask(Opcode.SETXATTR, setxattr_in(b"user.size", b"large", os.XATTR_CREATE), ino=ino)
    found = {name: os.getxattr(mounted.upper / "tagged", name) for name in ("user.colour", "user.size")}
    assert found == {"user.colour": b"blue", "user.size": b"large"}


def test_a_link_is_made_with_a_name_and_a_target_of_any_bytes(mounted: Mounted) -> None:
    entry = entry_of(mounted.ask(Opcode.SYMLINK, ODD + b"\0" + b"../" + ODD + b"\0", ino=mounted.ino("many")))
    assert stat.S_ISLNK(entry.attr.mode)
    assert os.readlink(os.fsencode(mounted.upper / "many") + b"/" + ODD) == b"../" + ODD
    assert mounted.knows(entry.nodeid)


def test_a_file_gets_another_name(mounted: Mounted) -> None:
    ino = mounted.ino("file")
    entry = entry_of(mounted.ask(Opcode.LINK, struct.pack("=Q", ino) + ODD + b"\0", ino=mounted.ino("many")))
    assert (entry.nodeid, entry.attr.nlink) == (ino, 2)
    assert mounted.look(b"many/" + ODD).nodeid == ino


def test_a_mode_is_changed_and_nothing_else(mounted: Mounted) -> None:
    before = mounted.look("file").attr
    after = mounted.change(before.ino, valid=MODE, mode=stat.S_IFREG | 0o600).attr
    unchanged = before._replace(mode=after.mode, ctime=after.ctime, ctimensec=after.ctimensec)
    assert after._replace(blocks=before.blocks) == unchanged
    assert stat.S_IMODE(after.mode) == stat.S_IMODE((mounted.upper / "file").stat().st_mode) == 0o600


def test_the_size_of_an_open_file_is_changed(mounted: Mounted) -> None:
    opened = mounted.open("file", os.O_RDWR)
    assert mounted.change(mounted.ino("file"), valid=SIZE | FH, size=4, fh=opened.handle).attr.size == 4
    assert (mounted.upper / "file").read_text() == "some"


def times_of(attr: Attr) -> tuple[int, int]:
    return attr.atime * A_SECOND + attr.atimensec, attr.mtime * A_SECOND + attr.mtimensec


def test_times_are_set_to_the_nanosecond_also_before_1970(mounted: Mounted) -> None:
    values = {"atime": -2, "atimensec": 999_999_999, "mtime": 5_000_000_000, "mtimensec": 1}
    after = mounted.change(mounted.ino("file"), valid=ATIME | MTIME, **values).attr
    assert times_of(after) == (-2 * A_SECOND + 999_999_999, 5_000_000_000 * A_SECOND + 1)
    assert (mounted.upper / "file").stat().st_mtime_ns == 5_000_000_000 * A_SECOND + 1


def test_what_it_is_now_is_for_the_kernel_to_say(mounted: Mounted) -> None:
    ino = mounted.ino("file")
    mounted.change(ino, valid=ATIME | MTIME, atime=1, atimensec=0, mtime=2, mtimensec=0)
    atime, mtime = times_of(mounted.change(ino, valid=ATIME | ATIME_NOW, atime=70, atimensec=7).attr)
    assert (atime, mtime) == (70 * A_SECOND + 7, 2 * A_SECOND)
    atime, mtime = times_of(mounted.change(ino, valid=MTIME | MTIME_NOW, mtime=80, mtimensec=8).attr)
    assert (atime, mtime) == (70 * A_SECOND + 7, 80 * A_SECOND + 8)


class Changes:
    """Takes the place of setattr and remembers what it was told."""

    def __init__(self, fs: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[tuple[AttributeChange, int | None]] = []
        self._fs = fs
        monkeypatch.setattr(fs, "setattr", self._setattr)

    def _setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        self.told.append((change, handle))
        return self._fs.getattr(ino)


@pytest.mark.parametrize(
    ("valid", "change", "handle"),
    [
        (0, AttributeChange(), None),
        (MODE, AttributeChange(mode=1), None),
        (UID, AttributeChange(uid=2), None),
        (GID, AttributeChange(gid=3), None),
        (SIZE, AttributeChange(size=4), None),
        (SIZE | FH, AttributeChange(size=4), 5),
        (ATIME, AttributeChange(atime_ns=6 * A_SECOND + 7), None),
        (MTIME, AttributeChange(mtime_ns=-8 * A_SECOND + 9), None),
        (MODE | UID | GID | FH, AttributeChange(mode=1, uid=2, gid=3), 5),
        # FATTR_LOCKOWNER, FATTR_CTIME and FATTR_KILL_SUIDGID say nothing that is asked for here.
        (1 << 9 | 1 << 10 | 1 << 11, AttributeChange(), None),
    ],
)
def test_only_what_is_valid_is_changed(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, valid: int, change: AttributeChange, handle: int | None
) -> None:
    changes = Changes(mounted.fs, monkeypatch)
    values = {"mode": 1, "uid": 2, "gid": 3, "size": 4, "fh": 5}
    values |= {"atime": 6, "atimensec": 7, "mtime": -8, "mtimensec": 9}
    mounted.change(mounted.ino("file"), valid=valid, **values)
    assert changes.told == [(change, handle)]


def test_a_directory_is_made(mounted: Mounted) -> None:
    body = struct.pack("=II", stat.S_IFDIR | 0o751, 0o022) + ODD + b"\0"
    made = entry_of(mounted.ask(Opcode.MKDIR, body))
    assert made.attr.mode == stat.S_IFDIR | 0o751
    assert mounted.look(ODD).nodeid == made.nodeid
    assert (mounted.upper / os.fsdecode(ODD)).is_dir()
    with fails_with(errno.EEXIST):
        mounted.ask(Opcode.MKDIR, body)


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG])
def test_a_node_is_made(mounted: Mounted, kind: int) -> None:
    body = struct.pack("=IIII", kind | 0o646, 0, 0o022, 0) + ODD + b"\0"
    made = entry_of(mounted.ask(Opcode.MKNOD, body))
    # The kernel leaves the umask of the caller to the filesystem.
    assert made.attr.mode == kind | 0o644
    assert mounted.look(ODD).nodeid == made.nodeid
    assert (mounted.upper / os.fsdecode(ODD)).lstat().st_mode == kind | 0o644
    with fails_with(errno.EEXIST):
        mounted.ask(Opcode.MKNOD, body)


def test_a_node_of_a_device_has_its_number(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bytes, int, int]] = []
    real = mounted.fs.mknod

    def mknod(parent: int, name: bytes, mode: int, device: int, caller: Caller, *, umask: int = 0) -> Entry:
        told.append((name, mode, device))
        return real(parent, name, stat.S_IFIFO | 0o600, 0, caller, umask=umask)

    monkeypatch.setattr(mounted.fs, "mknod", mknod)
    # As new_encode_dev of the kernel has it: device 8, 300.
    number = (300 & 0xFF) | 8 << 8 | (300 & ~0xFF) << 12
    mounted.ask(Opcode.MKNOD, struct.pack("=IIII", stat.S_IFBLK | 0o600, number, 0, 0) + b"disk\0")
    assert told == [(b"disk", stat.S_IFBLK | 0o600, os.makedev(8, 300))]


def test_a_file_is_unlinked(mounted: Mounted) -> None:
    assert mounted.ask(Opcode.UNLINK, b"file\0") == b""
    assert mounted.look("file").nodeid == 0
    assert is_whiteout(mounted.upper / "file")
    with fails_with(errno.ENOENT):
        mounted.ask(Opcode.UNLINK, b"file\0")


def test_a_directory_is_removed_when_it_is_empty(mounted: Mounted) -> None:
    assert mounted.ask(Opcode.RMDIR, b"hollow\0") == b""
    assert mounted.look("hollow").nodeid == 0
    with fails_with(errno.ENOTEMPTY):
        mounted.ask(Opcode.RMDIR, b"many\0")


def rename(mounted: Mounted, old: bytes, to: int, new: bytes) -> bytes:
    return mounted.ask(Opcode.RENAME, struct.pack("=Q", to) + old + b"\0" + new + b"\0")


def rename2(mounted: Mounted, old: bytes, to: int, new: bytes, flags: int = 0) -> bytes:
    return mounted.ask(Opcode.RENAME2, struct.pack("=QII", to, flags, 0) + old + b"\0" + new + b"\0")


def test_a_file_is_renamed_into_another_directory_over_what_is_there(mounted: Mounted) -> None:
    ino = mounted.ino("file")
    assert rename(mounted, b"file", mounted.ino("many"), b"file1") == b""
    assert mounted.look("file").nodeid == 0
    assert mounted.ino("many/file1") == ino


@pytest.mark.parametrize("way", [rename, rename2])
def test_a_file_is_renamed_to_a_name_of_any_bytes(mounted: Mounted, way: RenameIt) -> None:
    ino = mounted.ino("file")
    assert way(mounted, b"file", ROOT_INODE, ODD) == b""
    assert mounted.ino(ODD) == ino
    assert way(mounted, ODD, ROOT_INODE, b"=") == b""
    assert mounted.ino("=") == ino


def test_flags_of_a_rename_count(mounted: Mounted) -> None:
    with fails_with(errno.EEXIST):
        rename2(mounted, b"file", ROOT_INODE, b"tagged", NOREPLACE)
    assert rename2(mounted, b"file", ROOT_INODE, b"new", NOREPLACE) == b""
    assert mounted.look("new").attr.size == 9


# Files


def test_the_content_of_a_small_file_is_given_and_kept(mounted: Mounted) -> None:
    opened = mounted.open("file", os.O_RDONLY)
    assert mounted.given == [(mounted.ino("file"), b"some text")]
    assert opened.flags == KEEP_CACHE


def test_content_that_the_kernel_does_not_take_is_not_kept(mounted: Mounted) -> None:
    mounted.takes_content = False
    assert mounted.open("file", os.O_RDONLY).flags == 0


def test_what_the_kernel_has_is_kept_and_not_given_again(mounted: Mounted) -> None:
    mounted.open("file", os.O_RDONLY)
    assert mounted.open("file", os.O_RDONLY).flags == KEEP_CACHE
    assert len(mounted.given) == 1


@pytest.mark.parametrize(
    ("opened", "flags"), [(OpenedFile(7, False, direct=True), DIRECT_IO), (OpenedFile(7, False), 0)]
)
def test_what_is_not_to_be_cached_is_opened_so(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, opened: OpenedFile, flags: int
) -> None:
    monkeypatch.setattr(mounted.fs, "open", lambda *_: opened)
    assert mounted.open("file", os.O_RDONLY) == (7, flags)


def test_what_is_made_up_is_read_around_the_kernels_pages(mounted: Mounted) -> None:
    window = ControlDir(mounted.fs, {b"policy": lambda: b"text"})
    made = Dispatcher(
        window, mounted.kernel.number, trio.to_thread.run_sync, mounted.begun.append, mounted, Owing(mounted)
    )
    mounted.dispatcher = made
    opened = mounted.open(os.fsdecode(NAME) + "/policy", os.O_RDONLY)
    assert opened.flags == DIRECT_IO


def create(mounted: Mounted, name: bytes, mode: int, flags: int) -> tuple[EntryOut, OpenOut]:
    body = struct.pack("=IIII", flags, mode, 0o022, 0) + name + b"\0"
    answer = mounted.ask(Opcode.CREATE, body)
    return entry_of(answer[:128]), opened_of(answer[128:])


def test_a_file_is_created_and_open(mounted: Mounted) -> None:
    entry, opened = create(mounted, ODD, stat.S_IFREG | 0o640, os.O_RDWR | os.O_CREAT)
    assert entry.attr.mode == stat.S_IFREG | 0o640
    assert opened.flags == 0
    assert mounted.ino(ODD) == entry.nodeid
    mounted.ask(Opcode.WRITE, write_in(opened.handle, 0, 3, b"new"))
    assert (mounted.upper / os.fsdecode(ODD)).read_text() == "new"


def test_what_is_there_is_not_created_anew(mounted: Mounted) -> None:
    with fails_with(errno.EEXIST):
        create(mounted, b"file", stat.S_IFREG | 0o640, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    mounted.open("file", os.O_RDONLY)
    entry, opened = create(mounted, b"file", stat.S_IFREG | 0o640, os.O_RDONLY | os.O_CREAT)
    assert entry.nodeid == mounted.ino("file")
    assert opened.flags == KEEP_CACHE


@pytest.mark.parametrize("size", [0, 1, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 1 << 17])
def test_as_much_is_read_as_was_asked_for(mounted: Mounted, size: int) -> None:
    content = os.urandom((1 << 17) + 100)
    (mounted.lower / "data").write_bytes(content)
    opened = mounted.open("data", os.O_RDONLY)
    assert mounted.ask(Opcode.READ, place(opened.handle, 50, size)) == content[50 : 50 + size]
    end = len(content) - 10
    assert mounted.ask(Opcode.READ, place(opened.handle, end, size)) == content[end : end + size]


@pytest.mark.parametrize("size", [1, 4096, 1 << 17])
def test_what_is_written_is_there(mounted: Mounted, size: int) -> None:
    data = os.urandom(size)
    _, opened = create(mounted, b"new", stat.S_IFREG | 0o640, os.O_RDWR)
    answer = mounted.ask(Opcode.WRITE, write_in(opened.handle, 5, size, data))
    assert answer == struct.pack("=II", size, 0)
    assert (mounted.upper / "new").read_bytes() == bytes(5) + data


def test_no_more_is_written_than_was_asked_for_or_is_there(mounted: Mounted) -> None:
    _, opened = create(mounted, b"new", stat.S_IFREG | 0o640, os.O_RDWR)
    answer = mounted.ask(Opcode.WRITE, write_in(opened.handle, 0, 3, b"12345"))
    assert answer == struct.pack("=II", 3, 0)
    answer = mounted.ask(Opcode.WRITE, write_in(opened.handle, 3, 100, b"45"))
    assert answer == struct.pack("=II", 2, 0)
    assert (mounted.upper / "new").read_bytes() == b"12345"


def test_what_is_released_is_open_no_more(mounted: Mounted, caplog: pytest.LogCaptureFixture) -> None:
    opened = mounted.open("file", os.O_RDONLY)
    assert mounted.ask(Opcode.RELEASE, struct.pack("=QIIQ", opened.handle, 0, 0, 0)) == b""
    with fails_with(errno.EIO):
        mounted.ask(Opcode.READ, place(opened.handle, 0, 10))
    assert "bug in read" in caplog.text


@pytest.mark.parametrize(("flags", "datasync"), [(0, False), (1, True), (2, False)])
def test_a_file_is_synced_with_or_without_its_attributes(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, flags: int, datasync: bool
) -> None:
    synced: list[tuple[int, bool]] = []
    monkeypatch.setattr(mounted.fs, "fsync", lambda *args: synced.append(args))
    assert mounted.ask(Opcode.FSYNC, struct.pack("=QII", 5, flags, 0)) == b""
    assert synced == [(5, datasync)]


@pytest.mark.parametrize(
    ("opening", "flags", "how"),
    [
        (os.O_WRONLY, os.O_WRONLY, None),
        (os.O_WRONLY, os.O_WRONLY | os.O_DSYNC, os.fdatasync),
        (os.O_WRONLY, os.O_WRONLY | os.O_SYNC | os.O_APPEND, os.fsync),
        # Through the kernel's pages, after which it asks for it by itself.
        (os.O_RDWR, os.O_RDWR | os.O_DSYNC, None),
    ],
)
def test_a_write_around_the_kernels_pages_reaches_the_disk_when_it_should(
    mounted: Mounted,
    monkeypatch: pytest.MonkeyPatch,
    opening: int,
    flags: int,
    how: Callable[[int], None] | None,
) -> None:
    mounted.fs.let_writes_go_around_pages()
    opened = mounted.open("file", opening)
    seen: list[tuple[object, bytes]] = []
    monkeypatch.setattr(Syncs, "sync", lambda _, fd, sync: seen.append((sync, os.pread(fd, 9, 0))))
    body = mounted.ask(Opcode.WRITE, write_in(opened.handle, 0, 4, b"SOME", flags))
    assert body == struct.pack("=II", 4, 0)
    assert seen == ([] if how is None else [(how, b"SOME text")])


def test_a_write_through_the_kernels_pages_by_who_only_writes_is_left_to_it(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.fs.let_writes_go_around_pages()
    mounted.open("file", os.O_RDWR)
    opened = mounted.open("file", os.O_WRONLY)
    assert not opened.flags & DIRECT_IO
    monkeypatch.setattr(Syncs, "sync", lambda _, fd, sync: pytest.fail("the kernel asks for it by itself"))
    mounted.ask(Opcode.WRITE, write_in(opened.handle, 0, 4, b"SOME", os.O_WRONLY | os.O_DSYNC))


def test_a_handle_that_has_the_number_of_one_that_went_around_pages_does_not(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted.fs.let_writes_go_around_pages()
    around = mounted.open("file", os.O_WRONLY)
    mounted.ask(Opcode.RELEASE, struct.pack("=QIIQ", around.handle, 0, 0, 0), ino=mounted.ino("file"))
    monkeypatch.setattr(mounted.fs._files, "_serial", count(around.handle))
    through = mounted.open("file", os.O_RDWR)
    assert through.handle == around.handle
    monkeypatch.setattr(Syncs, "sync", lambda _, fd, sync: pytest.fail("the kernel asks for it by itself"))
    mounted.ask(Opcode.WRITE, write_in(through.handle, 0, 4, b"SOME", os.O_RDWR | os.O_DSYNC))


def test_a_write_that_waits_for_the_disk_is_answered_when_it_is_there(mounted: Mounted) -> None:
    allow_work_beside(mounted)
    mounted.fs.let_writes_go_around_pages()
    opened = mounted.open("file", os.O_WRONLY)
    mounted.begin(Opcode.WRITE, write_in(opened.handle, 0, 4, b"SOME", os.O_WRONLY | os.O_DSYNC))
    assert mounted.waited_for() == struct.pack("=II", 4, 0)
    assert (mounted.upper / "file").read_bytes() == b"SOME text"


# Directories


def test_the_kernel_is_to_open_directories_by_itself(mounted: Mounted) -> None:
    with fails_with(errno.ENOSYS):
        mounted.opendir("many")


def test_a_listing_that_the_host_can_change_unnoticed_is_not_remembered(mounted: Mounted) -> None:
    mounted.list("many")
    mounted.list("many")
    assert mounted.to_be_listed_again == [mounted.ino("many")] * 2


def test_a_listing_that_is_watched_is_remembered(watched: Mounted) -> None:
    watched.list("many")
    assert watched.to_be_listed_again == []


def test_a_listing_is_not_remembered_when_the_host_changed_it_before_its_end(watched: Mounted) -> None:
    ino = watched.ino("many")
    last = watched.readdir(ino)[-1].position
    (watched.lower / "many" / "another").touch()
    os.utime(watched.lower / "many", ns=(0, time.time_ns() + A_SECOND))
    assert watched.readdir(ino, last) == []
    assert watched.to_be_listed_again == [ino]


def test_a_listing_is_not_remembered_that_two_have_read_at_once(
    watched: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ino = watched.ino("many")
    first = watched.readdir(ino, room=500)
    last = watched.readdir(ino)[-1].position
    assert watched.readdir(ino, first[-1].position)
    assert watched.readdir(ino, last) == []
    assert watched.to_be_listed_again == [ino]
    watched.list("many")
    assert watched.to_be_listed_again == [ino, ino], "one of the two may still be told"
    much_later = time.monotonic() + 3600
    monkeypatch.setattr(handlers, "time", SimpleNamespace(monotonic=lambda: much_later))
    watched.list("many")
    assert watched.to_be_listed_again == [ino, ino]


def test_others_are_answered_while_the_kernel_is_made_to_forget_a_listing(mounted: Mounted) -> None:
    ino = mounted.ino("many")
    last = mounted.readdir(ino)[-1].position
    mounted.may_forget.clear()
    mounted.begin(Opcode.READDIRPLUS, place(0, last, 1 << 17), ino=ino)
    listing = mounted.unique
    # It may wait for somebody who waits for us, with a page of the directory in his hand.
    assert mounted.ask(Opcode.GETATTR, bytes(16))
    mounted.may_forget.set()
    mounted.unique = listing
    assert mounted.waited_for() == b""
    assert mounted.to_be_listed_again == [ino]


def test_a_listing_is_not_remembered_that_is_taken_up_in_the_middle(watched: Mounted) -> None:
    middle = watched.list("many")[4].position
    ino = watched.ino("many")
    last = watched.readdir(ino, middle)[-1].position
    assert watched.readdir(ino, last) == []
    assert watched.to_be_listed_again == [ino]


def test_a_listing_that_was_read_to_its_end_is_open_no_more(mounted: Mounted) -> None:
    mounted.list("many")
    assert len(mounted.fs._listings) == 0


def test_of_the_listings_that_nobody_reads_to_the_end_some_are_kept(mounted: Mounted) -> None:
    for number in range(MOST_STREAMS + 10):
        name = f"d{number}"
        mounted.ask(Opcode.MKDIR, struct.pack("=II", 0o755, 0) + os.fsencode(name) + b"\0")
        mounted.readdir(mounted.ino(name))
    assert len(mounted.fs._listings) == MOST_STREAMS
    # One that was not kept goes on where it was.
    assert [one.name for one in mounted.readdir(mounted.ino("d0"), 1)] == [b".."]


def test_a_directory_that_has_the_number_of_one_that_is_forgotten_is_listed_as_it_is(
    mounted: Mounted,
) -> None:
    mounted.ask(Opcode.MKDIR, struct.pack("=II", 0o755, 0) + b"first\0")
    ino = mounted.ino("first")
    mounted.readdir(ino, room=200)
    mounted.begin(Opcode.FORGET, struct.pack("=Q", 2), ino=ino)
    assert len(mounted.fs._listings) == 0


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Mounted]:
    os.umask(0)
    made = Mounted(tmp_path, watches=100, every_listing=True)
    yield made
    made.close()


def test_where_every_listing_is_recorded_each_is_opened_and_none_remembered(recorded: Mounted) -> None:
    for _ in range(2):
        opened = recorded.opendir("many")
        assert opened.flags == 0
        found = recorded.readdir(recorded.ino("many"), handle=opened.handle)
        assert recorded.readdir(recorded.ino("many"), found[-1].position, handle=opened.handle) == []
        assert {one.name for one in found} >= {b"file1", b"file2"}
        assert recorded.ask(Opcode.RELEASEDIR, struct.pack("=QIIQ", opened.handle, 0, 0, 0)) == b""
    assert recorded.to_be_listed_again == []
    assert len(recorded.fs._listings) == 0


def test_all_entries_of_a_directory_are_listed(mounted: Mounted) -> None:
    found = {one.name: one for one in mounted.readdir(mounted.ino("many"))}
    assert found.keys() == {b".", b"..", *map(os.fsencode, FILES)}
    assert found[b"."].ino == mounted.ino("many")
    assert {found[b"."].type, found[b".."].type, found[b"file1"].type} == {4, 8}
    for name in FILES:
        one = found[os.fsencode(name)]
        assert one.entry.nodeid == one.entry.attr.ino == one.ino
        assert one.entry.attr == mounted.look(f"many/{name}").attr


def test_what_is_listed_is_referred_to_once_but_for_the_dots(mounted: Mounted) -> None:
    root = {one.name: one.ino for one in mounted.readdir(ROOT_INODE)}
    for name in (b"file", b"many"):
        assert mounted.knows(root[name])
        mounted.begin(Opcode.FORGET, struct.pack("=Q", 1), ino=root[name])
        assert not mounted.knows(root[name])
    many = mounted.ino("many")
    mounted.readdir(many)
    # Once for looking it up here.
    mounted.begin(Opcode.FORGET, struct.pack("=Q", 1), ino=many)
    assert not mounted.knows(many)


def test_a_listing_goes_on_where_there_was_no_more_room(mounted: Mounted) -> None:
    ino = mounted.ino("many")
    whole = mounted.readdir(ino)
    found: list[Listed] = []
    # Room for three with short names and a bit.
    while part := mounted.readdir(ino, found[-1].position if found else 0, 3 * 160 + 100):
        assert len(part) <= 3
        found += part
    assert [one.name for one in found] == [one.name for one in whole]
    assert mounted.readdir(ino, whole[4].position) == whole[5:]


def test_what_there_was_no_room_for_is_not_referred_to(mounted: Mounted) -> None:
    before = set(mounted.fs.inodes())
    listed = mounted.readdir(ROOT_INODE, room=4 * 160)
    told = {one.ino for one in listed if one.name not in (b".", b"..")}
    assert told
    assert set(mounted.fs.inodes()) == before | told


def test_what_the_kernel_knows_is_only_mentioned(watched: Mounted) -> None:
    known = {os.fsencode(name): watched.ino(f"many/{name}") for name in FILES[:8]}
    found = {one.name: one for one in watched.readdir(watched.ino("many"))}
    for name, ino in known.items():
        assert (found[name].entry.nodeid, found[name].ino, found[name].type) == (0, ino, 8)
        # No reference was counted.
        watched.begin(Opcode.FORGET, struct.pack("=Q", 1), ino=ino)
        assert not watched.knows(ino)
    assert found[b"file9"].entry.nodeid == found[b"file9"].ino


@pytest.mark.parametrize("datasync", [0, 1])
def test_a_directory_is_synced(mounted: Mounted, monkeypatch: pytest.MonkeyPatch, datasync: int) -> None:
    mounted.ask(Opcode.MKDIR, struct.pack("=II", 0o755, 0) + b"made\0")
    synced: list[int] = []
    monkeypatch.setattr(Syncs, "sync", lambda _, fd: synced.append(os.fstat(fd).st_ino))
    body = struct.pack("=QII", 0, datasync, 0)
    assert mounted.ask(Opcode.FSYNCDIR, body, ino=mounted.ino("made")) == b""
    assert len(mounted.fs._listings) == 0
    assert synced == [(mounted.upper / "made").stat().st_ino]


# All of them


def test_who_asks_is_told_to_the_filesystem(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mounted.fs.getattr
    asked: list[tuple[int, int, int]] = []

    def getattr_by(ino: int, caller: Caller) -> Entry:
        asked.append((caller.uid, caller.gid, caller.pid))
        return real(ino)

    monkeypatch.setattr(mounted.fs, "getattr", getattr_by)
    callers = [(0, 0, 0), (1, 2, 3), (1, 2, 3), (1, 2, 4), (1, 5, 4), (6, 5, 4), (1 << 31, 0, 1 << 31)]
    callers += [(1, 2, number) for number in range(600)] * 2
    for caller in callers:
        mounted.ask(Opcode.GETATTR, bytes(16), caller=caller)
    assert asked == callers
    assert len(mounted.dispatcher._callers) <= 256


@pytest.mark.parametrize("opcode", [Opcode.INTERRUPT, Opcode.NOTIFY_REPLY])
def test_what_the_kernel_expects_no_answer_to_is_not_answered(mounted: Mounted, opcode: Opcode) -> None:
    mounted.begin(opcode, struct.pack("=QQQQQ", 5, 0, 0, 0, 0))
    assert mounted.reply() is None


# Of enum fuse_opcode: FLUSH, READDIR, GETLK, SETLK, SETLKW, ACCESS, BMAP, POLL, FALLOCATE, LSEEK,
# COPY_FILE_RANGE, SETUPMAPPING, REMOVEMAPPING, SYNCFS, TMPFILE and STATX.
UNSUPPORTED = [25, 28, 31, 32, 33, 34, 37, 40, 43, 46, 47, 48, 49, 50, 51, 52]
UNKNOWN = [0, 7, 19, 53, 4096, (1 << 32) - 1]


@pytest.mark.parametrize("opcode", UNSUPPORTED + UNKNOWN)
def test_what_is_not_supported_is_refused_so_that_the_kernel_does_without(
    mounted: Mounted, opcode: int
) -> None:
    with fails_with(errno.ENOSYS):
        mounted.ask(opcode, bytes(100))


def test_every_request_that_the_kernel_can_send_is_supported_or_not() -> None:
    known = {opcode.value for opcode in Opcode}
    assert known.isdisjoint(UNSUPPORTED)
    # The kernel has left two numbers out.
    assert known | set(UNSUPPORTED) == set(range(1, 53)) - {7, 19}


def test_a_second_greeting_is_refused(mounted: Mounted) -> None:
    with fails_with(errno.EIO):
        mounted.ask(Opcode.INIT, struct.pack("=IIII", 7, 45, 1 << 17, 0) + bytes(48))


def test_the_end_of_the_connection_is_agreed_to(mounted: Mounted) -> None:
    assert mounted.ask(Opcode.DESTROY) == b""


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.ENOSPC])
def test_a_request_is_refused_with_the_error_that_the_filesystem_has(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(mounted.fs, "getattr", refuse)
    with fails_with(number):
        mounted.ask(Opcode.GETATTR, bytes(16))


def test_an_error_without_a_number_is_refused_as_some_error(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no number")

    monkeypatch.setattr(mounted.fs, "getattr", refuse)
    with fails_with(errno.EIO):
        mounted.ask(Opcode.GETATTR, bytes(16))


def test_a_bug_is_logged_and_refused_as_some_error(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mounted.fs, "getattr", broken)
    with fails_with(errno.EIO):
        mounted.ask(Opcode.GETATTR, bytes(16))
    assert "bug in getattr" in caplog.text
    assert "RuntimeError: a bug" in caplog.text


@pytest.mark.parametrize("opcode", list(Opcode))
def test_a_request_that_is_too_short_does_no_harm(mounted: Mounted, opcode: Opcode) -> None:
    """The kernel sends none; but what cannot be read is refused, like any bug, or asks for no change."""
    before = sorted(os.walk(mounted.upper)), sorted(os.walk(mounted.lower))
    mounted.begin(opcode)
    reply = mounted.reply()
    assert (sorted(os.walk(mounted.upper)), sorted(os.walk(mounted.lower))) == before
    assert (reply is not None) == (opcode not in UNANSWERED)


@pytest.mark.parametrize("number", [0, 512, 524, -5])
def test_an_error_that_the_kernel_would_not_take_is_told_as_another(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def failing(*_: object) -> Entry:
        raise OSError(number, "of a filesystem's own")

    monkeypatch.setattr(mounted.fs, "getattr", failing)
    with pytest.raises(OSError) as raised:
        mounted.ask(Opcode.GETATTR, bytes(16))
    assert raised.value.errno == errno.EIO


# Afterwards


def test_what_nobody_needs_to_wait_for_is_done_after_the_answer(mounted: Mounted) -> None:
    replies: list[Reply | None] = []
    mounted.afterwards = lambda: replies.append(mounted.reply())
    mounted.begin(Opcode.GETATTR, bytes(16))
    mounted.begin(Opcode.FORGET, bytes(8))
    first, second = replies
    assert first is not None
    assert first.error == 0
    assert second is None


def test_what_nobody_needs_to_wait_for_is_done_after_an_answer_that_came_later(mounted: Mounted) -> None:
    (mounted.lower / "large").write_bytes(bytes(LARGE))
    allow_work_beside(mounted)
    ino = mounted.ino("large")
    replies: list[Reply | None] = []
    mounted.afterwards = lambda: replies.append(mounted.reply())
    mounted.begin(Opcode.OPEN, struct.pack("=II", os.O_RDWR, 0), ino=ino)
    assert replies == []
    (task,) = mounted.begun
    trio.run(task)
    (reply,) = replies
    assert reply is not None
    assert reply.error == 0


# Later


def allow_work_beside(mounted: Mounted) -> None:
    mounted.fs.beside.allowed = True


def make_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is in memory."""

    def cold(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "preadv", cold)


class Threads:
    """Threads whose work is done when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[Callable[[], None]] = []
        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", self._start)

    def _start(self, work: Callable[[], object], deliver: Callable[[Outcome[object]], object]) -> None:
        self.begun.append(lambda: void(deliver(capture(work))))


def void(_: object) -> None:
    pass


def test_a_request_is_answered_when_its_work_is_done(mounted: Mounted) -> None:
    allow_work_beside(mounted)
    _, opened = create(mounted, b"new", stat.S_IFREG | 0o640, os.O_RDWR)
    mounted.begin(Opcode.FSYNC, struct.pack("=QII", opened.handle, 0, 0))
    assert mounted.waited_for() == b""


@pytest.mark.parametrize("size", [4, 1 << 15])
def test_a_request_whose_work_gives_the_answer_is_answered_with_that(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    content = os.urandom(1 << 16)
    (mounted.lower / "data").write_bytes(content)
    allow_work_beside(mounted)
    opened = mounted.open("data", os.O_RDONLY)
    make_cold(monkeypatch)
    mounted.begin(Opcode.READ, place(opened.handle, 5, size))
    assert mounted.waited_for() == content[5 : 5 + size]


def test_no_more_threads_answer_at_once_than_there_may_be(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_work_beside(mounted)
    opened = mounted.open("file", os.O_RDONLY)
    make_cold(monkeypatch)
    threads = Threads(monkeypatch)

    def read() -> None:
        mounted.begin(Opcode.READ, place(opened.handle, 5, 100))

    for _ in range(MOST_THREADS):
        read()
    assert len(threads.begun) == MOST_THREADS
    assert mounted.begun == []
    # One more gets its turn as a task.
    read()
    assert len(threads.begun) == MOST_THREADS
    # Which has a thread of its own, of trio's.
    monkeypatch.undo()
    assert mounted.finish() == b"text"
    for thread in threads.begun:
        thread()


def test_a_thread_that_has_answered_makes_room_for_another(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_work_beside(mounted)
    opened = mounted.open("file", os.O_RDONLY)
    make_cold(monkeypatch)
    threads = Threads(monkeypatch)
    for _ in range(3 * MOST_THREADS):
        mounted.begin(Opcode.READ, place(opened.handle, 5, 100))
        threads.begun.pop()()
        assert mounted.reply() is not None
    assert mounted.begun == []


def test_no_thread_answers_after_the_end(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_work_beside(mounted)
    opened = mounted.open("file", os.O_RDONLY)
    make_cold(monkeypatch)
    threads = Threads(monkeypatch)
    mounted.begin(Opcode.READ, place(opened.handle, 5, 100))
    mounted.dispatcher.close()
    threads.begun.pop()()
    assert mounted.reply() is None


def test_a_request_is_made_again_as_it_was_though_its_bytes_are_gone(mounted: Mounted) -> None:
    content = os.urandom(LARGE + 10)
    (mounted.lower / "large").write_bytes(content)
    allow_work_beside(mounted)
    ino = mounted.ino("large")
    mounted.begin(Opcode.SETATTR, setattr_in(SIZE | MODE, size=LARGE + 5, mode=0o600), ino=ino)
    found = attributes_of(mounted.finish()).attr
    assert (found.size, stat.S_IMODE(found.mode)) == (LARGE + 5, 0o600)
    assert (mounted.upper / "large").read_bytes() == content[: LARGE + 5]


def test_others_are_answered_while_one_waits(mounted: Mounted) -> None:
    (mounted.lower / "large").write_bytes(bytes(LARGE))
    allow_work_beside(mounted)
    ino = mounted.ino("large")
    waits = mounted.unique + 2
    mounted.begin(Opcode.OPEN, struct.pack("=II", os.O_RDWR, 0), ino=ino)
    assert mounted.look("file").attr.size == 9
    (task,) = mounted.begun
    trio.run(task)
    told = mounted.kernel.told()
    assert told is not None
    assert reply_of(told)[:2] == (0, waits)


def fails() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("answers", [True, False])
@pytest.mark.parametrize(("work", "number"), [(fails, errno.ENOSPC), (broken, errno.EIO)])
def test_work_that_fails_fails_the_request(
    mounted: Mounted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    work: Callable[[], object],
    number: int,
    answers: bool,
) -> None:
    def later(*_: object) -> None:
        raise Deferred(work, answers=answers)

    monkeypatch.setattr(mounted.fs, "getattr", later)
    mounted.begin(Opcode.GETATTR, bytes(16))
    with fails_with(number):
        void(mounted.waited_for() if answers else mounted.finish())
    assert ("bug in getattr" in caplog.text) is (number == errno.EIO)


def test_work_that_fails_is_over_all_the_same(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    over: list[int] = []

    def later(*_: object) -> None:
        raise Deferred(fails, answers=False, over=lambda: over.append(1))

    monkeypatch.setattr(mounted.fs, "getattr", later)
    mounted.begin(Opcode.GETATTR, bytes(16))
    with fails_with(errno.ENOSPC):
        mounted.finish()
    assert over == [1]


def test_a_request_may_take_more_work_than_one(mounted: Mounted, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mounted.fs.getattr
    done: list[int] = []

    def twice(ino: int, caller: Caller) -> Entry:
        if len(done) < 2:
            raise Deferred(lambda: done.append(1), answers=False)
        return real(ino)

    monkeypatch.setattr(mounted.fs, "getattr", twice)
    mounted.begin(Opcode.GETATTR, bytes(16))
    assert attributes_of(mounted.finish()).attr.ino == ROOT_INODE
    assert done == [1, 1]


# A device that does not take an answer


def refuse_answers(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    refused: list[int] = []

    def write(fd: int, data: object) -> int:
        refused.append(fd)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "writev", write)
    return refused


@pytest.mark.parametrize("size", [10, 1 << 15])
@pytest.mark.parametrize(
    ("number", "logged"), [(errno.ENOENT, False), (errno.ENODEV, False), (errno.EINVAL, True)]
)
def test_an_answer_that_nobody_waits_for_any_more_is_no_error(
    mounted: Mounted,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    size: int,
    number: int,
    logged: bool,
) -> None:
    (mounted.lower / "data").write_bytes(bytes(1 << 15))
    opened = mounted.open("data", os.O_RDONLY)
    with monkeypatch.context() as patched:
        refused = refuse_answers(patched, number)
        mounted.begin(Opcode.READ, place(opened.handle, 0, size))
    assert refused == [mounted.kernel.number]
    assert bool(caplog.records) is logged
