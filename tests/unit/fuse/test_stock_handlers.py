"""Do pyfuse3's own handlers say only what they can answer for?"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyfuse3
import pytest
import trio

from sandboxfs.fuse.operations import Operations
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from sandboxfs.overlay.window import NAME, Window
from tests.support.tree import build

FILES = {b"policy": lambda: b"text"}


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Window]:
    workspace = build(tmp_path / "workspace", {"file": "text"})
    parts = [tmp_path / name for name in ("upper", "work", "index")]
    for part in parts:
        part.mkdir()
    overlay = Overlay(OverlayPaths([workspace], *parts))
    overlay.let_writes_go_around_pages()
    made = Window(overlay, FILES)
    yield made
    made.close()


def opened(window: Window, path: list[bytes], flags: int) -> pyfuse3.FileInfo:
    ino = ROOT_INODE
    for name in path:
        entry = window.lookup(ino, name, ANYBODY)
        assert entry is not None
        ino = entry.ino
    context = pyfuse3.RequestContext.__new__(pyfuse3.RequestContext)
    return trio.run(Operations(window).open, pyfuse3.InodeT(ino), flags, context)


def test_what_is_made_up_is_read_around_the_kernels_pages(window: Window) -> None:
    assert opened(window, [NAME, b"policy"], os.O_RDONLY).direct_io


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_DSYNC])
def test_a_file_is_written_through_them(window: Window, flags: int) -> None:
    assert window.open(ino_of(window), os.O_WRONLY, ANYBODY).direct
    assert not opened(window, [b"file"], flags).direct_io


def ino_of(window: Window) -> int:
    entry = window.lookup(ROOT_INODE, b"file", ANYBODY)
    assert entry is not None
    return entry.ino
