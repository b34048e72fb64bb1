"""Is a small file given along when it is first opened, and never what the kernel may know better?"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, AttributeChange, OpenedFile
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.tree import Tree, build

TREE: Tree = {"small": "text", "empty": "", "largest": "x" * (1 << 16), "larger": "x" * ((1 << 16) + 1)}


class Opening:
    """An overlay whose files are opened by name."""

    def __init__(self, place: Path) -> None:
        self.workspace = build(place / "workspace", TREE)
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.fs = Overlay(OverlayPaths([self.workspace], *parts))

    def ino(self, name: str) -> int:
        entry = self.fs.lookup(ROOT_INODE, name.encode())
        assert entry is not None
        return entry.ino

    def open(self, name: str, flags: int = os.O_RDONLY) -> OpenedFile:
        return self.fs.open(self.ino(name), flags, ANYBODY)

    def once(self, name: str, flags: int = os.O_RDONLY) -> OpenedFile:
        opened = self.open(name, flags)
        self.fs.release(opened.handle)
        return opened


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    umask = os.umask(0)
    made = Opening(tmp_path)
    yield made
    made.fs.close()
    os.umask(umask)


def test_the_first_opening_gives_all_that_is_in_the_file(opening: Opening) -> None:
    assert opening.once("small").content == b"text"
    assert opening.once("largest").content == b"x" * (1 << 16)


def test_an_empty_and_a_large_file_are_not_given(opening: Opening) -> None:
    assert opening.once("empty").content is None
    assert opening.once("larger").content is None


def test_a_later_opening_gives_nothing_and_lets_the_kernel_keep_what_it_has(opening: Opening) -> None:
    opening.once("small")
    again = opening.once("small")
    assert again.content is None
    assert again.keep_cache


def test_who_opens_it_while_it_is_open_gets_nothing(opening: Opening) -> None:
    first = opening.open("small")
    assert opening.once("small").content is None
    opening.fs.release(first.handle)


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC])
def test_who_is_going_to_change_it_gets_nothing(opening: Opening, flags: int) -> None:
    assert opening.once("small", flags).content is None


def test_a_file_that_was_copied_up_before_it_was_opened_is_given(opening: Opening) -> None:
    opening.fs.setattr(opening.ino("small"), AttributeChange(mode=0o600), None, ANYBODY)
    assert opening.once("small").content == b"text"


def test_a_file_that_the_host_changed_is_not_given_to_a_kernel_that_has_old_pages(opening: Opening) -> None:
    opening.once("small")
    (opening.workspace / "small").write_text("something else")
    changed = opening.once("small")
    assert changed.content is None
    assert not changed.keep_cache


def test_a_file_that_the_host_changed_before_its_copy_is_not_kept_and_not_given(opening: Opening) -> None:
    opening.once("small")
    (opening.workspace / "small").write_text("something else")
    opening.fs.setattr(opening.ino("small"), AttributeChange(mode=0o600), None, ANYBODY)
    copied = opening.once("small")
    assert copied.content is None
    assert not copied.keep_cache


def test_a_new_file_is_the_kernels_own_to_keep(opening: Opening) -> None:
    opened, _ = opening.fs.create(ROOT_INODE, b"new", 0o644, os.O_RDWR, ANYBODY)
    opening.fs.write(opened.handle, 0, b"written")
    opening.fs.release(opened.handle)
    again = opening.once("new")
    assert again.content is None
    assert again.keep_cache


def test_what_is_not_at_hand_is_not_waited_for(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_now(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", not_now)
    assert opening.once("small").content is None


def test_what_is_only_partly_at_hand_is_not_given(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: 2)
    assert opening.once("small").content is None


@pytest.mark.parametrize("in_memory", [True, False])
def test_where_a_filesystem_cannot_tell_what_is_at_hand_all_is_that_lies_in_memory(
    opening: Opening, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    read = os.preadv

    def cannot_tell(fd: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return read(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", cannot_tell)
    monkeypatch.setattr("sandboxfs.overlay.files.is_in_memory", lambda _: in_memory)
    assert (opening.once("small").content is not None) is in_memory


# Writing around the kernel's pages


@pytest.fixture
def around(opening: Opening) -> Opening:
    opening.fs.let_writes_go_around_pages()
    return opening


def make(opening: Opening, name: bytes, flags: int, content: bytes) -> OpenedFile:
    opened, _ = opening.fs.create(ROOT_INODE, name, 0o644, flags, ANYBODY)
    opening.fs.write(opened.handle, 0, content)
    opening.fs.release(opened.handle)
    return opened


def test_writing_goes_through_the_kernels_pages_unless_it_can_be_relied_on(opening: Opening) -> None:
    assert not opening.once("small", os.O_WRONLY).direct
    assert not make(opening, b"made", os.O_WRONLY, b"text").direct


@pytest.mark.parametrize("more", [0, os.O_TRUNC, os.O_APPEND])
def test_who_only_writes_goes_around_the_kernels_pages(around: Opening, more: int) -> None:
    assert around.once("small", os.O_WRONLY | more).direct
    assert make(around, b"made", os.O_WRONLY | more, b"text").direct


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND])
def test_who_reads_does_not_go_around_them(around: Opening, flags: int) -> None:
    assert not around.once("small", flags).direct


def test_nobody_goes_around_the_pages_of_a_file_that_may_be_mapped_to_be_written(around: Opening) -> None:
    both = around.open("small", os.O_RDWR)
    reading = around.open("small")
    assert not around.once("small", os.O_WRONLY).direct
    around.fs.release(both.handle)
    # Whoever mapped it through a handle that was closed still has it open for the kernel, and so for us.
    assert not around.once("small", os.O_WRONLY).direct
    around.fs.release(reading.handle)
    assert around.once("small", os.O_WRONLY).direct


def test_who_only_reads_a_file_does_not_keep_others_from_going_around_its_pages(around: Opening) -> None:
    reading = around.open("small")
    assert around.once("small", os.O_WRONLY).direct
    around.fs.release(reading.handle)


def test_what_was_only_written_is_given_to_the_first_who_reads_it(around: Opening) -> None:
    make(around, b"made", os.O_WRONLY, b"what was written")
    around.once("made", os.O_WRONLY)
    opened = around.once("made")
    assert (opened.content, opened.keep_cache) == (b"what was written", False)
    assert around.once("made").keep_cache


def test_what_was_written_through_pages_is_kept_and_not_given(around: Opening) -> None:
    make(around, b"made", os.O_RDWR, b"what was written")
    opened = around.once("made")
    assert (opened.content, opened.keep_cache) == (None, True)


def test_pages_are_kept_though_somebody_wrote_around_them(around: Opening) -> None:
    # The kernel takes away the wrong ones by itself.
    around.once("small", os.O_RDWR)
    writing = around.open("small", os.O_WRONLY)
    assert writing.keep_cache
    around.fs.write(writing.handle, 0, b"TEXT and more")
    around.fs.release(writing.handle)
    opened = around.once("small")
    assert (opened.content, opened.keep_cache) == (None, True)


def test_nothing_is_given_while_somebody_writes(around: Opening) -> None:
    writing = around.open("small", os.O_WRONLY)
    reading = around.open("small")
    assert reading.content is None
    assert not reading.keep_cache
    around.fs.release(writing.handle)
    around.fs.release(reading.handle)
    assert around.once("small").keep_cache
