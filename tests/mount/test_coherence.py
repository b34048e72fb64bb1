"""Does the kernel forget in time what the host has changed, however it came to know it?

The kernel may keep names for an hour and attributes for a minute, so whatever comes true here within a second
was told to it. Every test looks first, in every way that is about to be outdated.
"""

import mmap
import os
import random
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support import conditions
from tests.support.dirstream import DirStream
from tests.support.host_edits import overwrite, replace
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.mounted import Area, companion, eventually, run, says, tell
from tests.support.tree import HardLink, Tree

MakeArea = Callable[[Tree], Area]

PAGE = mmap.PAGESIZE
OLD = b"o" * (2 * PAGE)
NEW = b"n" * (2 * PAGE)
# For what has to wait for thousands of events on a busy machine.
LATER = 20.0


@contextmanager
def mapped(path: Path) -> Iterator[mmap.mmap]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
        os.close(fd)
        yield memory


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def holds_so_much(fd: int, size: int) -> bool:
    return os.fstat(fd).st_size == len(os.pread(fd, size + 1, 0)) == size


def is_gone(path: Path) -> bool:
    return not os.path.lexists(path)


def content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


# Content


def test_a_memory_map_shows_what_the_host_writes_in_place(area: MakeArea) -> None:
    here = area({"file": OLD})
    with mapped(here.view / "file") as memory:
        assert memory[:] == OLD
        overwrite(here.lower / "file", NEW)
        here.host_changed()
        eventually(lambda: memory[:] == NEW, "the new content in the map")


def test_a_memory_map_keeps_the_file_that_the_host_replaces(area: MakeArea) -> None:
    here = area({"file": OLD})
    with mapped(here.view / "file") as memory:
        assert memory[:] == OLD
        replace(here.lower / "file", NEW)
        here.host_changed()
        eventually(lambda: content(here.view / "file") == NEW, "the new file")
        assert memory[:] == OLD


def test_a_memory_map_shows_what_the_host_left_of_a_file_that_it_cut(area: MakeArea) -> None:
    here = area({"file": OLD})
    with mapped(here.view / "file") as memory:
        assert memory[:] == OLD
        os.truncate(here.lower / "file", 100)
        here.host_changed()
        eventually(lambda: (here.view / "file").stat().st_size == 100, "the new size")
        assert memory[:PAGE] == OLD[:100] + bytes(PAGE - 100)


def test_cached_pages_of_a_file_that_is_open_show_what_the_host_writes(area: MakeArea) -> None:
    here = area({"file": OLD})
    with opened(here.view / "file") as fd:
        assert os.pread(fd, len(OLD), 0) == OLD
        overwrite(here.lower / "file", NEW)
        here.host_changed()
        eventually(lambda: os.pread(fd, len(NEW), 0) == NEW, "the new content")


def test_a_file_that_grows_on_the_host_is_followed_as_by_tail(area: MakeArea) -> None:
    here = area({"log": "start\n"})
    with opened(here.view / "log") as fd, open(here.lower / "log", "ab", buffering=0) as log:
        for size in range(6, 600, 100):
            assert len(os.pread(fd, 1000, 0)) == os.fstat(fd).st_size == size
            log.write(bytes(100))
            eventually(partial(holds_so_much, fd, size + 100), "what was appended")
    here.host_changed()


def test_what_the_host_writes_through_a_memory_map_shows_when_it_is_unmapped(area: MakeArea) -> None:
    here = area({"file": OLD})
    with opened(here.view / "file") as fd:
        assert os.pread(fd, len(OLD), 0) == OLD
        with open(here.lower / "file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[:] = NEW
        here.host_changed()
        eventually(lambda: os.pread(fd, len(NEW), 0) == NEW, "the new content")


@pytest.mark.parametrize("other", ["second", "elsewhere/second"])
def test_a_file_that_the_host_edits_by_another_of_its_names_shows_it(area: MakeArea, other: str) -> None:
    here = area({"dir/file": OLD, other: HardLink("dir/file")})
    with opened(here.view / "dir/file") as fd:
        assert os.pread(fd, len(OLD), 0) == OLD
        overwrite(here.lower / other, NEW + b"more")
        here.host_changed()
        eventually(lambda: (here.view / "dir/file").stat().st_size == len(NEW) + 4, "the new size")
        eventually(lambda: os.pread(fd, len(NEW), 0) == NEW, "the new content")
        assert (here.view / "dir/file").read_bytes() == NEW + b"more"


def test_a_name_that_the_host_gives_to_a_cached_file_is_no_way_around(area: MakeArea) -> None:
    here = area({"dir/file": OLD, "other/": ""})
    os.listdir(here.view / "other")
    with opened(here.view / "dir/file") as fd:
        assert os.pread(fd, len(OLD), 0) == OLD
        os.link(here.lower / "dir/file", here.lower / "other/second")
        eventually(lambda: (here.view / "dir/file").stat().st_nlink == 2, "the second name")
        overwrite(here.lower / "other/second", NEW)
        here.host_changed()
        eventually(lambda: os.pread(fd, len(NEW), 0) == NEW, "the new content")


# Names


def make_file(path: Path) -> None:
    path.write_text("made")


def make_directory(path: Path) -> None:
    path.mkdir()


def make_link(path: Path) -> None:
    path.symlink_to("nowhere")


def move_in(path: Path) -> None:
    path.with_name("outside").write_text("moved")
    path.with_name("outside").rename(path)


MAKERS = {"a file": make_file, "a directory": make_directory, "a symlink": make_link, "a move": move_in}


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize("name", [b"plain", b"new\nline", b"\xff\xfe"])
def test_a_name_known_to_be_absent_appears(area: MakeArea, how: str, name: bytes) -> None:
    here = area({"dir/file": ""})
    path = here.view / "dir" / os.fsdecode(name)
    for _ in range(3):
        assert not os.path.lexists(path)
    MAKERS[how](here.lower / "dir" / os.fsdecode(name))
    here.host_changed()
    eventually(lambda: os.path.lexists(path), "the name")
    assert os.fsdecode(name) in os.listdir(here.view / "dir")


def test_a_name_known_to_be_absent_appears_in_a_directory_that_the_sandbox_renamed(area: MakeArea) -> None:
    here = area({"dir/file": ""})
    (here.view / "dir").rename(here.view / "renamed")
    assert not (here.view / "renamed/new").exists()
    assert (here.view / "renamed/file").read_bytes() == b""
    make_file(here.lower / "dir/new")
    overwrite(here.lower / "dir/file", NEW)
    here.host_changed()
    eventually((here.view / "renamed/new").exists, "the new name")
    eventually(lambda: content(here.view / "renamed/file") == NEW, "the new content")


def test_names_that_the_host_deletes_one_by_one_go_from_an_open_listing_and_from_lookups(
    area: MakeArea,
) -> None:
    here = area({f"dir/{number}": "" for number in range(10)})
    with DirStream(here.view / "dir") as stream:
        assert len(list(stream.rest())) == 12
        for number in range(10):
            (here.lower / f"dir/{number}").unlink()
            eventually(partial(is_gone, here.view / f"dir/{number}"), "the name is gone")
            stream.rewind()
            assert len(list(stream.rest())) == 11 - number
    here.host_changed()


@pytest.mark.parametrize("part", ["lower", "merged"])
def test_a_listing_that_was_read_before_follows_the_host_and_the_view(area: MakeArea, part: str) -> None:
    here = area({"dir/one": "", "dir/two": ""})
    view, lower = here.view / "dir", here.lower / "dir"
    expected = {"one", "two"}
    if part == "merged":
        (view / "ours").touch()
        expected.add("ours")
    with DirStream(view) as stream:
        for number in range(20):
            for _ in range(2):
                assert set(os.listdir(view)) == expected
            make_file(lower / f"host{number}")
            expected.add(f"host{number}")
            eventually(lambda: set(os.listdir(view)) == expected, "what the host made")
            (view / f"view{number}").touch()
            expected.add(f"view{number}")
            assert set(os.listdir(view)) == expected
            (lower / f"host{number}").unlink()
            expected.discard(f"host{number}")
            eventually(lambda: set(os.listdir(view)) == expected, "without what the host removed")
            eventually(lambda: listed_again(stream) == expected, "the same in a stream that was open")
            (view / f"view{number}").unlink()
            expected.discard(f"view{number}")
            assert set(os.listdir(view)) == expected
    here.host_changed()


LIST_ON_AND_ON = """
import os, select, sys
print("listing")
while not select.select([0], [], [], 0)[0]:
    os.listdir(sys.argv[1])
print("done")
"""


def test_who_lists_a_directory_and_who_takes_names_from_it_never_wait_for_each_other(area: MakeArea) -> None:
    here = area({f"dir/{number}": "" for number in range(400)})
    lower, view = here.lower / "dir", here.view / "dir"
    with ExitStack() as programs:
        readers = [programs.enter_context(companion(LIST_ON_AND_ON, view, cwd=here.lower)) for _ in range(3)]
        for reader in readers:
            assert says(reader) == "listing"
        for number in range(400):
            (lower / str(number)).unlink()
            if number % 20 == 0:
                eventually(lambda number=number: not (view / str(number)).exists(), "that it is gone")  # type: ignore[misc]
        for reader in readers:
            tell(reader, "stop")
            assert says(reader) == "done"
    here.host_changed()


def listed_again(stream: DirStream) -> set[str]:
    stream.rewind()
    return {os.fsdecode(entry.name) for entry in stream.rest()} - {".", ".."}


def is_listed(directory: Path) -> bool:
    try:
        os.listdir(directory)
    except OSError:
        return False
    return True


def test_a_directory_that_has_not_changed_is_listed_without_asking(mount: Mount, order: Path) -> None:
    sandbox = mount({f"dir/{number:04}": "" for number in range(500)})
    directory = sandbox.root / "dir"
    # Held open: a test beside this one may have the kernel forget whatever nobody uses.
    with opened(directory):
        before = os.listdir(directory)
        for verb in ("opendir", "readdir"):
            order.write_text(verb)
            assert os.listdir(directory) == before
        (sandbox.lower / "dir/new").touch()
        sandbox.host_changed()
        eventually(lambda: not is_listed(directory), "the question for what is in it now")
    order.write_text("")
    assert set(os.listdir(directory)) == {*before, "new"}
    # The bug was ours.
    os.truncate(sandbox.home / "daemon.log", 0)


def test_a_listing_that_was_read_before_follows_a_commit_and_a_discard(mount: Mount) -> None:
    sandbox = mount({"dir/file": "", "dir/other": ""})
    directory = sandbox.root / "dir"
    (directory / "made").touch()
    (directory / "file").unlink()
    for verb, expected in (("discard", {"file", "other"}), ("commit", {"made", "other"})):
        with DirStream(directory) as stream:
            for _ in range(2):
                assert set(os.listdir(directory)) == listed_again(stream) == {"made", "other"}
            options = ["--all"] if verb == "discard" else []
            done = run_sandboxfs(verb, "-s", "test", "--yes", *options, state=sandbox.state)
            assert done.returncode == 0, done.stderr
            sandbox.host_changed()
            assert set(os.listdir(directory)) == listed_again(stream) == expected
        if verb == "discard":
            done = run_sandboxfs("undo", "-s", "test", "--yes", state=sandbox.state)
            assert done.returncode == 0, done.stderr
            assert set(os.listdir(directory)) == {"made", "other"}


def test_a_tree_that_the_host_moves_is_found_below_its_new_name_only(area: MakeArea) -> None:
    here = area({"dir/a/b/c/leaf": "leaf", "dir/a/other": ""})
    assert (here.view / "dir/a/b/c/leaf").read_text() == "leaf"
    assert not (here.view / "moved").exists()
    (here.lower / "dir").rename(here.lower / "moved")
    here.host_changed()
    eventually(lambda: content(here.view / "moved/a/b/c/leaf") == b"leaf", "the new place")
    eventually(lambda: not (here.view / "dir/a/b/c/leaf").exists(), "the old place is gone")
    overwrite(here.lower / "moved/a/b/c/leaf", b"LEAF")
    here.host_changed()
    eventually(lambda: content(here.view / "moved/a/b/c/leaf") == b"LEAF", "what is written there now")
    make_file(here.lower / "moved/a/new")
    here.host_changed()
    eventually((here.view / "moved/a/new").exists, "what is made there now")


def test_a_program_goes_on_in_a_directory_that_the_host_moves(area: MakeArea) -> None:
    here = area({"dir/file": "old"})
    with opened(here.view / "dir") as fd:
        assert os.stat("file", dir_fd=fd).st_size == 3
        (here.lower / "dir").rename(here.lower / "moved")
        eventually((here.view / "moved").exists, "the new place")
        (here.lower / "moved/file").write_bytes(NEW)
        here.host_changed()
        eventually(lambda: os.stat("file", dir_fd=fd).st_size == len(NEW), "the new size")


def test_a_lower_directory_that_the_host_replaces_under_changes_of_the_sandbox_shows(area: MakeArea) -> None:
    here = area({"dir/old": "", "dir/sub/deep": "old"})
    (here.view / "dir/ours").write_text("ours")
    (here.view / "dir/sub/ours").write_text("ours")
    assert not (here.view / "dir/new").exists()
    assert (here.view / "dir/sub/deep").read_text() == "old"
    (here.lower / "dir").rename(here.lower / "away")
    (here.lower / "dir/sub").mkdir(parents=True)
    make_file(here.lower / "dir/new")
    (here.lower / "dir/sub/deep").write_text("new")
    here.host_changed()
    eventually((here.view / "dir/new").exists, "the new name")
    eventually(lambda: not (here.view / "dir/old").exists(), "the old name is gone")
    eventually(lambda: content(here.view / "dir/sub/deep") == b"new", "the new content below")
    assert sorted(os.listdir(here.view / "dir")) == ["new", "ours", "sub"]
    assert sorted(os.listdir(here.view / "dir/sub")) == ["deep", "ours"]


# Attributes


def test_permissions_that_the_host_takes_away_are_gone_for_programs_too(mount: Mount) -> None:
    conditions.require_root()
    sandbox = mount({"dir/file": "text"}, "--allow-other")
    with opened(sandbox.root / "dir") as fd:

        def readable() -> bool:
            command = ["cat", f"/proc/self/fd/{fd}/file"]
            done = subprocess.run(command, user=65534, extra_groups=[], pass_fds=[fd], capture_output=True)
            return done.returncode == 0

        assert readable()
        (sandbox.lower / "dir/file").chmod(0o600)
        eventually(lambda: not readable(), "the file may not be read")
        (sandbox.lower / "dir/file").chmod(0o644)
        eventually(readable, "the file may be read")
        (sandbox.lower / "dir").chmod(0o700)
        eventually(lambda: not readable(), "the directory may not be entered")
    sandbox.host_changed()


def test_the_times_and_the_link_count_of_a_directory_follow_what_the_host_makes_in_it(area: MakeArea) -> None:
    here = area({"dir/file": ""})
    os.listdir(here.view / "dir")
    before = [(here.view / "dir").stat() for _ in range(3)][-1]
    (here.lower / "dir/sub").mkdir()
    here.host_changed()
    eventually(lambda: (here.view / "dir").stat().st_nlink == before.st_nlink + 1, "the count")
    assert (here.view / "dir").stat().st_mtime_ns == (here.lower / "dir").stat().st_mtime_ns


def test_an_open_file_knows_that_the_host_took_its_name(area: MakeArea) -> None:
    here = area({"file": OLD})
    with opened(here.view / "file") as fd:
        assert os.fstat(fd).st_nlink == 1
        (here.lower / "file").unlink()
        here.host_changed()
        eventually(lambda: os.fstat(fd).st_nlink == 0, "no name is left")
        assert os.pread(fd, len(OLD), 0) == OLD


# The sandbox's own doings in between


def test_a_file_is_followed_again_after_its_change_was_discarded(mount: Mount) -> None:
    sandbox = mount({"dir/file": "lower"})
    view, lower = sandbox.root / "dir/file", sandbox.lower / "dir/file"
    view.write_text("ours")
    done = run_sandboxfs("discard", "-s", "test", "--all", "--yes", state=sandbox.state)
    assert done.returncode == 0, done.stderr
    assert view.read_text() == "lower"
    lower.write_text("edited on the host")
    sandbox.host_changed()
    eventually(lambda: content(view) == b"edited on the host", "the edit")
    lower.unlink()
    sandbox.host_changed()
    eventually(lambda: not view.exists(), "the name is gone")


def test_a_committed_file_is_followed(mount: Mount) -> None:
    sandbox = mount({"dir/file": "lower"})
    view, lower = sandbox.root / "dir/file", sandbox.lower / "dir/file"
    view.write_text("ours")
    done = run_sandboxfs("commit", "-s", "test", "--yes", state=sandbox.state)
    assert done.returncode == 0, done.stderr
    assert view.read_text() == "ours"
    lower.write_text("edited on the host")
    sandbox.host_changed()
    eventually(lambda: content(view) == b"edited on the host", "the edit")


def test_what_is_mounted_in_the_workspace_shows_and_goes_again(mount: Mount) -> None:
    conditions.require_root()
    sandbox = mount({"dir/file": "below", "dir/other": ""})
    assert (sandbox.root / "dir/file").read_text() == "below"
    run("mount", "-t", "tmpfs", "none", sandbox.lower / "dir", cwd=sandbox.lower)
    try:
        (sandbox.lower / "dir/mounted").touch()
        eventually((sandbox.root / "dir/mounted").exists, "what is mounted")
        assert os.listdir(sandbox.root / "dir") == ["mounted"]
    finally:
        # Lazily: the daemon holds the directory open.
        run("umount", "--lazy", sandbox.lower / "dir", cwd=Path("/"))
    eventually((sandbox.root / "dir/file").exists, "what was below")
    assert sorted(os.listdir(sandbox.root / "dir")) == ["file", "other"]


# Many at once


def test_thousands_of_files_that_change_at_once_all_show(mount: Mount) -> None:
    sandbox = mount({f"{number % 40}/{number}": "old" for number in range(2000)})
    paths = [f"{number % 40}/{number}" for number in range(2000)]
    assert {(sandbox.root / path).read_text() for path in paths} == {"old"}
    for path in paths:
        (sandbox.lower / path).write_text("changed")
    sandbox.host_changed()
    eventually(lambda: all(content(sandbox.root / p) == b"changed" for p in paths), "all changes", LATER)
    assert {(sandbox.root / path).stat().st_size for path in paths} == {7}


def test_the_view_is_right_after_more_has_happened_than_the_kernel_remembers(mount: Mount) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    sandbox = mount({"dir/cached": "old", "dir/goes": "", "busy/one": "", "busy/two": ""})
    os.listdir(sandbox.root / "busy")
    assert content(sandbox.root / "dir/cached") == b"old"
    assert content(sandbox.root / "dir/absent") is None
    assert content(sandbox.root / "dir/goes") == b""
    os.kill(sandbox.pid, signal.SIGSTOP)
    try:
        for number in range(limit // 2 + 100):
            # Two in turn: the same event twice in a row would be counted once.
            os.utime(sandbox.lower / "busy/one", ns=(0, number))
            os.utime(sandbox.lower / "busy/two", ns=(0, number))
        (sandbox.lower / "dir/cached").write_text("rewritten")
        (sandbox.lower / "dir/absent").write_text("there now")
        (sandbox.lower / "dir/goes").unlink()
    finally:
        os.kill(sandbox.pid, signal.SIGCONT)
    sandbox.host_changed()
    eventually(lambda: content(sandbox.root / "dir/cached") == b"rewritten", "the new content", LATER)
    eventually(lambda: content(sandbox.root / "dir/absent") == b"there now", "the new name", LATER)
    eventually(lambda: content(sandbox.root / "dir/goes") is None, "the name is gone", LATER)


def test_the_daemon_ends_when_told_to_in_the_middle_of_a_storm(mount: Mount) -> None:
    sandbox = mount({f"{number}": "old" for number in range(500)})
    os.listdir(sandbox.root)
    for number in range(500):
        (sandbox.lower / f"{number}").write_text("new")
    sandbox.host_changed()
    os.kill(sandbox.pid, signal.SIGTERM)
    eventually(lambda: not sandbox.is_mounted, "unmounted", LATER)


# At random

CHANGE_ON_THE_HOST = """
import os, random, sys, time
root, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
chance = random.Random(seed)
places = ["", "a", "b", "a/c", "a/c/d"]
names = ["one", "two", "three", "a", "b", "c", "d"]

def path():
    return os.path.join(root, chance.choice(places), chance.choice(names))

def change():
    what, one, other = chance.randrange(9), path(), path()
    if what == 0:
        with open(one, "w") as file:
            file.write("x" * chance.randrange(9000))
    elif what == 1:
        fd = os.open(one, os.O_WRONLY)
        os.pwrite(fd, os.urandom(3).hex().encode(), chance.randrange(5000))
        os.close(fd)
    elif what == 2:
        os.truncate(one, chance.randrange(6000))
    elif what == 3:
        os.rename(one, other)
    elif what == 4:
        os.unlink(one)
    elif what == 5:
        os.mkdir(one)
    elif what == 6:
        os.chmod(one, chance.choice([0o700, 0o755, 0o777]))
    elif what == 7:
        os.symlink(chance.choice(names), one)
    elif chance.random() < 0.3:
        os.rmdir(one)
    else:
        os.link(one, other)

print("ready")
sys.stdin.readline()
until = time.monotonic() + seconds
while time.monotonic() < until:
    try:
        change()
    except OSError:
        pass
    if chance.random() < 0.05:
        time.sleep(chance.random() / 20)
print("done")
"""

LOOK_IN_THE_VIEW = """
import mmap, os, random, sys, time
root, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
chance = random.Random(seed)
places = ["", "a", "b", "a/c", "a/c/d"]
names = ["one", "two", "three", "a", "b", "c", "d"]
held = []

def look():
    where = os.path.join(root, chance.choice(places))
    one = os.path.join(where, chance.choice(names))
    what = chance.randrange(6)
    if what == 0:
        os.lstat(one)
    elif what == 1:
        os.listdir(where)
    elif what == 2:
        with open(one, "rb") as file:
            file.read()
    elif what == 3:
        fd = os.open(one, os.O_RDONLY)
        held.append(fd)
        os.pread(fd, 10000, 0)
        if len(held) > 5:
            os.close(held.pop(chance.randrange(5)))
    elif what == 4:
        os.readlink(one)
    elif chance.random() < 0.02:
        with open(os.path.join(where, f"ours{seed}"), "a") as file:
            file.write("ours")

print("ready")
sys.stdin.readline()
until = time.monotonic() + seconds
while time.monotonic() < until:
    try:
        look()
    except OSError:
        pass
print("done")
"""


def plain_overlay(lower: Path | None, upper: Path | None) -> dict[str, object]:
    """What an overlay of two directories shows, where the upper one has no marks: names and what they are."""
    shown: dict[str, object] = {}
    for name in sorted({n for part in (lower, upper) if part is not None for n in os.listdir(part)}):
        above = _directory_or_other(upper, name)
        below = _directory_or_other(lower, name)
        if above is not None and not stat.S_ISDIR(above.lstat().st_mode):
            shown[name] = _what(above)
        elif above is None and below is not None and not stat.S_ISDIR(below.lstat().st_mode):
            shown[name] = _what(below)
        else:
            merged = below if below is not None and stat.S_ISDIR(below.lstat().st_mode) else None
            shown[name] = plain_overlay(merged, above)
    return shown


def _directory_or_other(directory: Path | None, name: str) -> Path | None:
    return directory / name if directory is not None and os.path.lexists(directory / name) else None


def _what(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "link", os.readlink(path)
    return "file", stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime_ns, path.read_bytes()


def test_the_view_agrees_with_a_plain_overlay_after_four_processes_worked_at_random(mount: Mount) -> None:
    sandbox: MountDriver = mount({"one": OLD, "a/one": OLD, "a/c/two": OLD, "a/c/d/three": OLD, "b/two": ""})
    seed = random.randrange(10**6)
    for round_ in range(3):
        with ExitStack() as stack:
            processes = [
                stack.enter_context(
                    companion(code, str(root), str(seed + 10 * round_ + number), "3", cwd=Path("/"))
                )
                for number, (code, root) in enumerate(
                    [
                        (CHANGE_ON_THE_HOST, sandbox.lower),
                        (CHANGE_ON_THE_HOST, sandbox.lower),
                        (LOOK_IN_THE_VIEW, sandbox.root),
                        (LOOK_IN_THE_VIEW, sandbox.root),
                    ]
                )
            ]
            assert [says(process) for process in processes] == ["ready"] * 4
            for process in processes:
                tell(process, "go")
            assert [says(process) for process in processes] == ["done"] * 4
        eventually(lambda: _agrees(sandbox), f"the view agrees, seed {seed}, round {round_}", within=3.0)
    sandbox.host_changed()


def _agrees(sandbox: MountDriver) -> bool:
    try:
        return plain_overlay(None, sandbox.root) == plain_overlay(sandbox.lower, sandbox.upper)
    except OSError:
        return False
