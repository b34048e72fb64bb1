"""Is a directory that somebody is working with the one it was, however many others are opened meanwhile?"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.guard_paths import LinkGuard
from sandboxfs.overlay.nodes import MOST_OPEN, DirectoryFds, LowerPart
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.compiled import Compiled
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Policy
from tests.support.claims import fails_with
from tests.support.silent import Silent
from tests.support.tree import build


@pytest.fixture
def root(tmp_path: Path) -> Iterator[HostDir]:
    build(tmp_path / "root", {f"dir{number}/in{number}": "" for number in range(4)})
    with HostDir.at(tmp_path / "root") as directory:
        yield directory


def part(root: HostDir, name: bytes) -> LowerPart:
    status = root.stat(name)
    assert status is not None
    return LowerPart(0, name, status.st_dev, status.st_ino)


def test_a_directory_that_is_in_use_stays_open_when_many_others_are_used(root: HostDir) -> None:
    fds = DirectoryFds(root, [root], limit=1)
    first = fds.lower(part(root, b"dir0"))
    for name in (b"dir1", b"dir2", b"dir3"):
        fds.lower(part(root, name))
    assert first.names() == [b"in0"]


def test_a_directory_that_nobody_uses_is_closed_when_others_are_used(root: HostDir) -> None:
    fds = DirectoryFds(root, [root], limit=1)
    held = part(root, b"dir0")
    descriptor = fds.lower(held).fd
    fds.lower(part(root, b"dir1"))
    assert held.held is None
    with fails_with(errno.EBADF):
        os.fstat(descriptor)


def test_a_closed_directory_is_not_the_next_that_is_opened(root: HostDir) -> None:
    directory = root.child(b"dir0")
    descriptor = directory.fd
    directory.close()
    with root.child(b"dir1") as other:
        assert other.fd == descriptor
        with fails_with(errno.EBADF):
            directory.own_stat()
        directory.close()
        assert other.names() == [b"in1"]


def test_a_rename_that_takes_long_to_decide_never_reaches_the_workspace(tmp_path: Path) -> None:
    # Deciding about a name below many that rules ask the workspace about opens as many directories of it.
    workspace = build(tmp_path / "workspace", {".git/file": "of the workspace", ".git/config": "kept"})
    parts = [tmp_path / name for name in ("upper", "work", "index")]
    for place in parts:
        place.mkdir()
    me = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())
    overlay = Overlay(OverlayPaths([workspace], *parts))
    links = LinkGuard(overlay, Silent(), Symlinks.KEEP, os.fsencode(workspace), b"/view")
    guard = Guard(overlay, Compiled(Policy(BUILT_IN), str(workspace)), Silent(), links)
    git = guard.lookup(ROOT_INODE, b".git", me)
    assert git is not None
    deep = guard.mkdir(git.ino, b"modules", 0o755, me).ino
    for _ in range(MOST_OPEN + 20):
        deep = guard.mkdir(deep, b"hooks", 0o755, me).ino
    opened, _ = guard.create(deep, b"file", 0o644, os.O_RDWR, me)
    guard.write(opened.handle, 0, b"of the sandbox")
    guard.release(opened.handle)
    guard.decide_anew()
    guard.rename(deep, b"file", deep, b"config", 0, me)
    moved = guard.lookup(deep, b"config", me)
    assert moved is not None
    assert moved.stat.st_size == len(b"of the sandbox")
    assert {path.name: path.read_text() for path in (workspace / ".git").iterdir()} == {
        "file": "of the workspace",
        "config": "kept",
    }
    guard.close()
