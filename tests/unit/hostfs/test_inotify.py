"""What the kernel tells of a directory: which names, what was done, and by which watch."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs import inotify
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.inotify import Event, Inotify, allowance, parsed, reports_changes


@pytest.fixture
def events() -> Iterator[Inotify]:
    made = Inotify()
    yield made
    made.close()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[HostDir]:
    with HostDir.at(tmp_path) as opened:
        yield opened


def told(events: Inotify) -> dict[bytes, int]:
    """All that was done to each name."""
    done: dict[bytes, int] = {}
    for event in events.read():
        done[event.name] = done.get(event.name, 0) | event.mask
    return done


@pytest.mark.parametrize("name", [b"plain", b"new\nline", b"\xff\xfe", b"x" * 255])
def test_any_name_is_told_as_it_is(events: Inotify, directory: HostDir, tmp_path: Path, name: bytes) -> None:
    events.add(directory)
    os.close(os.open(os.path.join(os.fsencode(tmp_path), name), os.O_CREAT | os.O_WRONLY))
    assert told(events)[name] & inotify.CREATE


def test_every_way_to_change_a_file_is_told(events: Inotify, directory: HostDir, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    events.add(directory)
    changes: list[tuple[Callable[[], object], int]] = [
        (lambda: file.write_text("new"), inotify.MODIFY | inotify.CLOSE_WRITE),
        (lambda: os.truncate(file, 1), inotify.MODIFY),
        (lambda: file.chmod(0o600), inotify.ATTRIB),
        (lambda: os.utime(file, (1, 1)), inotify.ATTRIB),
        (lambda: os.setxattr(file, "user.test", b"x"), inotify.ATTRIB),
        (lambda: file.rename(tmp_path / "moved"), inotify.MOVED_FROM),
    ]
    for change, mask in changes:
        change()
        assert told(events)[b"file"] & mask == mask
    (tmp_path / "moved").unlink()
    assert told(events) == {b"moved": inotify.DELETE}


def test_what_happens_to_the_directory_itself_comes_without_a_name(events: Inotify, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with HostDir.at(tmp_path / "inner") as inner:
        events.add(inner)
    (tmp_path / "inner").chmod(0o700)
    assert told(events)[b""] & inotify.ATTRIB
    (tmp_path / "inner").rename(tmp_path / "moved")
    assert told(events)[b""] & inotify.MOVE_SELF
    (tmp_path / "moved").rmdir()
    assert told(events)[b""] & inotify.IGNORED


def test_a_directory_has_one_watch_whatever_path_leads_there(events: Inotify, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(".")
    with HostDir.at(tmp_path) as one, HostDir.at(tmp_path / "link") as other:
        assert events.add(one) == events.add(other)


def test_nothing_is_told_after_a_watch_was_removed(
    events: Inotify, directory: HostDir, tmp_path: Path
) -> None:
    watch = events.add(directory)
    events.remove(watch)
    events.remove(watch)
    (tmp_path / "file").touch()
    assert events.read() == [Event(watch, inotify.IGNORED, b"")]


def test_a_file_in_place_of_a_directory_is_refused(events: Inotify, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_PATH)
    with HostDir(fd) as no_directory, pytest.raises(NotADirectoryError):
        events.add(no_directory)


def test_reading_an_empty_queue_gives_nothing(events: Inotify) -> None:
    assert events.read() == []


def test_several_events_are_taken_apart() -> None:
    data = b"\1\0\0\0" + b"\2\0\0\0" + bytes(4) + b"\4\0\0\0" + b"a\n\0\0"
    data += b"\xff\xff\xff\xff" + b"\0\x40\0\0" + bytes(8)
    assert list(parsed(data)) == [Event(1, inotify.MODIFY, b"a\n"), Event(-1, inotify.OVERFLOW, b"")]


def test_a_sandbox_may_take_half_of_the_watches() -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    assert allowance() == most // 2


def test_only_filesystems_that_nobody_changes_behind_the_kernel_are_believed(tmp_path: Path) -> None:
    with HostDir.at("/proc") as proc:
        assert not reports_changes(proc)
    with HostDir.at(tmp_path) as here:
        assert reports_changes(here)
