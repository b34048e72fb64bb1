"""Is a program in the view that watches it with inotify told of what the host does?"""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxfs.hostfs import inotify
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.inotify import Inotify
from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {"dir/file": "text", "dir/other": "", "dir/sub/": "", "dir/long\nname": ""}
# A busy machine is forgiven.
PATIENCE = 60.0


class Watcher:
    """Watches one directory of the view, as a program in it would."""

    def __init__(self, events: Inotify) -> None:
        self._events = events
        self.heard: set[tuple[bytes, int]] = set()

    def hears(self, *wanted: tuple[bytes, int]) -> bool:
        """Wait until one of the names is told of by something in its mask."""
        deadline = time.monotonic() + PATIENCE
        while not any(n == name and m & mask for n, m in self.heard for name, mask in wanted):
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._events.fd], [], [], left)[0]:
                return False
            self.heard |= {(event.name, event.mask) for event in self._events.read()}
        return True


@contextmanager
def watching(directory: Path) -> Iterator[Watcher]:
    events = Inotify()
    try:
        with HostDir.at(directory) as opened:
            events.add(opened)
        os.listdir(directory)
        yield Watcher(events)
    finally:
        events.close()


@pytest.fixture
def sandbox(mount: Mount) -> Iterator[MountDriver]:
    made = mount(TREE)
    yield made
    assert not os.path.lexists(made.upper / "dir"), "telling has changed the upper"
    made.host_changed()


# Of each deed: what the host does, and the name and the kind of what is told. The name of a removed file is
# told if its removal can be repeated before the kernel has to forget it, within a moment; else its directory.
DEEDS: dict[str, tuple[Callable[[Path], object], bytes, int]] = {
    "writes": (lambda d: (d / "file").write_text("longer text"), b"file", inotify.MODIFY),
    "writes a strange name": (lambda d: (d / "long\nname").write_text("x"), b"long\nname", inotify.MODIFY),
    "changes the mode": (lambda d: (d / "file").chmod(0o600), b"file", inotify.ATTRIB),
    "deletes": (lambda d: (d / "file").unlink(), b"file", inotify.DELETE),
    "creates": (lambda d: (d / "new").touch(), b"new", inotify.MODIFY | inotify.ATTRIB),
    "makes a directory": (lambda d: (d / "newdir").mkdir(), b"newdir", inotify.ATTRIB),
    "removes a directory": (lambda d: (d / "sub").rmdir(), b"", inotify.ATTRIB),
    "renames": (lambda d: (d / "file").rename(d / "moved"), b"moved", inotify.ATTRIB),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_who_watches_a_directory_is_told_when_the_host(sandbox: MountDriver, deed: str) -> None:
    act, name, mask = DEEDS[deed]
    with watching(sandbox.root / "dir") as watcher:
        act(sandbox.lower / "dir")
        wanted = [(name, mask), (b"", inotify.ATTRIB)] if deed == "deletes" else [(name, mask)]
        assert watcher.hears(*wanted), f"told: {watcher.heard}"
    assert sorted(os.listdir(sandbox.root / "dir")) == sorted(os.listdir(sandbox.lower / "dir"))
    for path in (sandbox.lower / "dir").iterdir():
        if path.is_file():
            assert (sandbox.root / "dir" / path.name).read_bytes() == path.read_bytes()
            shown = (sandbox.root / "dir" / path.name).stat()
            assert (shown.st_mode, shown.st_mtime_ns) == (path.stat().st_mode, path.stat().st_mtime_ns)


def test_nobody_is_needed_where_nobody_watches(sandbox: MountDriver) -> None:
    os.listdir(sandbox.root / "dir")
    (sandbox.lower / "dir/file").write_text("longer text")
    deadline = time.monotonic() + PATIENCE
    while (sandbox.root / "dir/file").stat().st_size != 11:
        assert time.monotonic() < deadline
    children = Path(f"/proc/{sandbox.pid}/task/{sandbox.pid}/children").read_text().split()
    assert children == []
