"""One process may repeat what was announced, which changes nothing; all else that it tries is refused."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.daemon.event_replay import ReplayDir
from sandboxfs.overlay.control_dir import ControlDir
from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller, AttributeChange
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.claims import fails_with
from tests.support.tree import build, capture

ECHOER = AnonymousCaller(os.getuid(), os.getgid(), 4711)
PROGRAM = AnonymousCaller(os.getuid(), os.getgid(), 4712)


class View(ReplayDir):
    """The overlay itself behind the window, without a policy."""

    def __init__(self, place: Path) -> None:
        self.lower = build(place / "workspace", {"file": "text", "dir/": ""})
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.upper = parts[0]
        super().__init__(Overlay(OverlayPaths([self.lower], *parts)), {})
        self.onlooker = ECHOER.pid
        self.numbers: dict[bytes, int] = {}
        for name in (b"file", b"dir"):
            entry = self.lookup(ROOT_INODE, name, PROGRAM)
            assert entry is not None
            self.numbers[name] = entry.ino


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    umask = os.umask(0)
    made = View(tmp_path)
    before = capture(made.lower)
    yield made
    made.close()
    os.umask(umask)
    assert capture(made.lower) == before


ECHOES = [AttributeChange(atime_ns=0, mtime_ns=0), AttributeChange(size=4), AttributeChange(size=0)]


@pytest.mark.parametrize("change", ECHOES)
def test_an_announced_change_is_answered_with_what_is_there_and_does_nothing(
    view: View, change: AttributeChange
) -> None:
    ino = view.numbers[b"file"]
    before = view.getattr(ino, PROGRAM)
    view.expect_touches([ino])
    assert view.setattr(ino, change, None, ECHOER) == before
    assert os.listdir(view.upper) == []


def test_an_announced_removal_is_answered_and_does_nothing(view: View) -> None:
    view.expect_removals([(ROOT_INODE, b"file")])
    view.unlink(ROOT_INODE, b"file", ECHOER)
    assert view.lookup(ROOT_INODE, b"file", PROGRAM) is not None
    assert os.listdir(view.upper) == []


def test_what_is_announced_for_the_echoer_is_real_for_everybody_else(view: View) -> None:
    ino = view.numbers[b"file"]
    view.expect_touches([ino])
    view.expect_removals([(ROOT_INODE, b"file")])
    assert view.setattr(ino, AttributeChange(size=0), None, PROGRAM).stat.st_size == 0
    view.unlink(ROOT_INODE, b"file", PROGRAM)
    assert view.lookup(ROOT_INODE, b"file", PROGRAM) is None


def test_nothing_is_expected_any_more_when_something_else_is_announced(view: View) -> None:
    ino = view.numbers[b"file"]
    view.expect_touches([ino])
    view.expect_removals([(ROOT_INODE, b"file")])
    view.expect_touches(())
    view.expect_removals(())
    with fails_with(errno.EPERM):
        view.setattr(ino, AttributeChange(size=0), None, ECHOER)
    with fails_with(errno.EPERM):
        view.unlink(ROOT_INODE, b"file", ECHOER)


FILE, DIR = b"file", b"dir"
UNEXPECTED: dict[str, Callable[[View, AnonymousCaller], object]] = {
    "chmod": lambda v, c: v.setattr(v.numbers[FILE], AttributeChange(mode=0), None, c),
    "chmod and times": lambda v, c: v.setattr(v.numbers[FILE], AttributeChange(mode=0, atime_ns=0), None, c),
    "touching another": lambda v, c: v.setattr(v.numbers[DIR], AttributeChange(mtime_ns=0), None, c),
    "unlink": lambda v, c: v.unlink(ROOT_INODE, b"other", c),
    "rmdir": lambda v, c: v.rmdir(ROOT_INODE, DIR, c),
    "mkdir": lambda v, c: v.mkdir(ROOT_INODE, b"new", 0o755, c),
    "mknod": lambda v, c: v.mknod(ROOT_INODE, b"new", 0o100644, 0, c),
    "symlink": lambda v, c: v.symlink(ROOT_INODE, b"new", b"to", c),
    "link": lambda v, c: v.link(v.numbers[FILE], ROOT_INODE, b"new", c),
    "rename": lambda v, c: v.rename(ROOT_INODE, FILE, ROOT_INODE, b"new", 0, c),
    "open": lambda v, c: v.open(v.numbers[FILE], os.O_WRONLY, c),
    "create": lambda v, c: v.create(ROOT_INODE, b"new", 0o644, os.O_WRONLY, c),
    "setxattr": lambda v, c: v.setxattr(v.numbers[FILE], b"user.x", b"", 0, c),
    "removexattr": lambda v, c: v.removexattr(v.numbers[FILE], b"user.x", c),
}


@pytest.mark.parametrize("what", UNEXPECTED)
def test_whatever_else_the_echoer_tries_is_refused(view: View, what: str) -> None:
    view.expect_touches([view.numbers[FILE]])
    view.expect_removals([(ROOT_INODE, FILE)])
    with fails_with(errno.EPERM):
        UNEXPECTED[what](view, ECHOER)
    assert os.listdir(view.upper) == []


VERBS = {"chmod": "setattr", "chmod and times": "setattr", "touching another": "setattr"}


def test_every_verb_that_is_told_who_asks_is_tried_or_only_looks() -> None:
    changing = {VERBS.get(what, what) for what in UNEXPECTED}
    only_looking = {"lookup", "getattr", "readlink", "getxattr", "listxattr", "opendir"}
    told = {
        name
        for name, verb in vars(Guard).items()
        if not name.startswith("_") and callable(verb) and "caller" in verb.__annotations__
    }
    assert told == changing | only_looking
    assert told <= set(vars(ControlDir))
