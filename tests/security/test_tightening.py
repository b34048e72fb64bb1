"""Does a rule that is tightened while files are open, mapped, cached or stood in hold from the reply on?"""

import ctypes
import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support import conditions
from tests.support.claims import fails_with
from tests.support.guarded import GuardedMount
from tests.support.mounted import companion, run, says, tell
from tests.support.tree import File

PAGE = mmap.PAGESIZE
CONTENT = b"secret".ljust(2 * PAGE, b".")

REFUSED = {"hide": errno.ENOENT, "deny": errno.EACCES}


@contextmanager
def opened(path: Path | str | bytes, flags: int) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def mount(guarded: Guarded) -> GuardedMount:
    return guarded({"file": File(CONTENT), "dir/one": "1\n", "dir/sub/two": "2\n", "other": "o\n"})


@pytest.mark.parametrize("mode", REFUSED)
def test_an_open_file_cannot_be_read_once_reading_is_forbidden(mount: GuardedMount, mode: str) -> None:
    with opened(mount.root / "file", os.O_RDONLY) as fd:
        assert os.pread(fd, 6, 0) == b"secret"
        mount.allow("file", mode)
        with fails_with(REFUSED[mode]):
            os.pread(fd, 6, 0)
        mount.allow("file", "ro")
        assert os.pread(fd, 6, 0) == b"secret"


@pytest.mark.parametrize("mode", ["hide", "deny", "ro"])
def test_an_open_file_cannot_be_written_once_writing_is_forbidden(mount: GuardedMount, mode: str) -> None:
    with opened(mount.root / "file", os.O_RDWR) as fd:
        os.pwrite(fd, b"before", 0)
        mount.allow("file", mode)
        for attempt in (
            lambda: os.pwrite(fd, b"after!", 0),
            lambda: os.ftruncate(fd, 0),
            lambda: os.fchmod(fd, 0o777),
            lambda: os.utime(fd),
            lambda: os.setxattr(fd, "user.x", b"x"),
        ):
            with fails_with(REFUSED.get(mode, errno.EROFS)):
                attempt()
        assert (mount.upper / "file").read_bytes().startswith(b"before")
        mount.allow("file", "rw")
        os.pwrite(fd, b"again!", 0)
    assert (mount.root / "file").read_bytes().startswith(b"again!")


@pytest.mark.parametrize("mode", REFUSED)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_TRUNC])
def test_a_descriptor_cannot_be_opened_again_through_proc(mount: GuardedMount, mode: str, flags: int) -> None:
    for first in (os.O_RDONLY, os.O_PATH):
        mount.allow("file", "rw")
        with opened(mount.root / "file", first) as fd:
            mount.allow("file", mode)
            with fails_with(REFUSED[mode]):
                os.open(f"/proc/self/fd/{fd}", flags)


def test_a_descriptor_cannot_be_opened_again_for_writing_once_it_is_read_only(mount: GuardedMount) -> None:
    with opened(mount.root / "file", os.O_RDWR) as fd:
        mount.allow("file", "ro")
        with fails_with(errno.EROFS):
            os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
        with fails_with(errno.EROFS):
            os.truncate(f"/proc/self/fd/{fd}", 0)


READ_A_MAP = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert memory[:6] == b"secret" and memory[-1:] == b"."
print("mapped")
sys.stdin.readline()
print(memory[:6])
"""


@pytest.mark.parametrize("mode", REFUSED)
def test_a_map_shows_nothing_once_reading_is_forbidden(mount: GuardedMount, mode: str) -> None:
    with companion(READ_A_MAP, mount.root / "file", cwd=Path("/")) as reader:
        assert says(reader) == "mapped"
        mount.allow("file", mode)
        tell(reader, "read")
        assert says(reader) == ""
        assert reader.wait(30) == -signal.SIGBUS


WRITE_A_MAP = """
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(fd, 0)
memory[:6] = b"before"
memory.flush()
print("mapped")
sys.stdin.readline()
memory[:6] = b"after!"
try:
    memory.flush()
except OSError as error:
    print("refused")
else:
    print("written")
sys.stdin.readline()
"""


@pytest.mark.parametrize("mode", ["hide", "deny", "ro"])
def test_a_write_through_a_map_does_not_reach_the_upper_once_it_is_forbidden(
    mount: GuardedMount, mode: str
) -> None:
    with companion(WRITE_A_MAP, mount.root / "file", cwd=Path("/")) as writer:
        assert says(writer) == "mapped"
        mount.allow("file", mode)
        tell(writer, "write")
        # Killed by SIGBUS where not even the page may be read.
        assert says(writer) in ("refused", "")
        assert (mount.upper / "file").read_bytes().startswith(b"before")
    assert (mount.upper / "file").read_bytes().startswith(b"before")


def test_what_a_map_failed_to_write_is_not_shown_to_others(mount: GuardedMount) -> None:
    with companion(WRITE_A_MAP, mount.root / "file", cwd=Path("/")) as writer:
        assert says(writer) == "mapped"
        mount.allow("file", "ro")
        tell(writer, "write")
        assert says(writer) == "refused"
    assert (mount.root / "file").read_bytes().startswith(b"before")


def test_what_was_written_through_a_map_before_the_rule_is_not_lost(mount: GuardedMount) -> None:
    with opened(mount.root / "file", os.O_RDWR) as fd, mmap.mmap(fd, 0) as memory:
        memory[:6] = b"before"
        mount.allow("file", "ro")
    assert (mount.root / "file").read_bytes().startswith(b"before")
    assert (mount.upper / "file").read_bytes().startswith(b"before")


def test_a_path_descriptor_does_not_give_a_forbidden_file_another_name(mount: GuardedMount) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    at_fdcwd, at_empty_path, at_symlink_follow = -100, 0x1000, 0x400
    with opened(mount.root / "file", os.O_PATH) as fd:
        for mode, error in (("hide", errno.ENOENT), ("deny", errno.EACCES), ("ro", errno.EROFS)):
            mount.allow("file", mode)
            new = os.fsencode(mount.root / f"new-{mode}")
            for source, name, flags in (
                (fd, b"", at_empty_path),
                (at_fdcwd, b"/proc/self/fd/%d" % fd, at_symlink_follow),
            ):
                assert libc.linkat(source, name, at_fdcwd, new, flags) == -1
                # ENOENT is also what a kernel says that allows the empty path to root alone.
                assert ctypes.get_errno() in (error, errno.ENOENT)
            assert not os.path.lexists(new)


@pytest.mark.parametrize("mode", REFUSED)
def test_a_handle_that_outlives_descriptors_does_not_open_what_is_forbidden(
    mount: GuardedMount, mode: str
) -> None:
    conditions.require_root()
    libc = ctypes.CDLL(None, use_errno=True)
    # struct file_handle: the room for it, its kind, and then the handle itself.
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 8 + 128)
    place = ctypes.c_int()
    path = os.fsencode(mount.root / "file")
    assert libc.name_to_handle_at(-100, path, handle, ctypes.byref(place), 0) == 0
    with opened(mount.root, os.O_RDONLY) as view, opened(path, os.O_PATH):
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_PATH):
            fd = libc.open_by_handle_at(view, handle, flags)
            assert fd >= 0
            os.close(fd)
        mount.allow("file", mode)
        for flags in (os.O_RDONLY, os.O_RDWR):
            assert libc.open_by_handle_at(view, handle, flags) == -1
            assert ctypes.get_errno() in (REFUSED[mode], errno.ESTALE)


@pytest.mark.parametrize("mode", REFUSED)
def test_a_cached_name_is_refused_at_once(mount: GuardedMount, mode: str) -> None:
    (mount.root / "made").write_text("in the upper\n")
    for name in ("file", "made", "dir/sub/two"):
        path = mount.root / name
        assert os.stat(path).st_size
        mount.allow(name, mode)
        with fails_with(REFUSED[mode]):
            os.stat(path)
        with fails_with(REFUSED[mode]):
            os.open(path, os.O_RDONLY)


@pytest.mark.parametrize("mode", REFUSED)
def test_a_name_that_the_kernel_knows_from_a_listing_alone_is_refused_at_once(
    mount: GuardedMount, mode: str
) -> None:
    for number in range(5):
        (mount.root / "dir" / f"made-{number}").write_text("in the upper\n")
    mount.remount()
    # Listed with attributes, the names and what they are need not be asked for again.
    assert all(entry.stat().st_size for entry in os.scandir(mount.root / "dir") if entry.is_file())
    mount.allow("dir/made-3", mode)
    with fails_with(REFUSED[mode]):
        os.stat(mount.root / "dir" / "made-3")
    assert os.stat(mount.root / "dir" / "made-2").st_size


@pytest.mark.parametrize("mode", REFUSED)
@pytest.mark.parametrize("kind", ["lower", "upper"])
def test_a_file_that_was_renamed_is_refused_at_once(mount: GuardedMount, mode: str, kind: str) -> None:
    if kind == "upper":
        os.truncate(mount.root / "file", len(CONTENT) - 1)
    with opened(mount.root / "file", os.O_RDONLY) as fd:
        assert os.pread(fd, 6, 0) == b"secret"
        os.rename(mount.root / "file", mount.root / "renamed")
        assert os.pread(fd, 6, 0) == b"secret"
        mount.allow("renamed", mode)
        with fails_with(REFUSED[mode]):
            os.pread(fd, 6, 0)
        with fails_with(REFUSED[mode]):
            os.stat(mount.root / "renamed")


@pytest.mark.parametrize("mode", REFUSED)
@pytest.mark.parametrize("rules", [(), ("dir/sub/x=ro", "**/y=deny")])
def test_what_is_in_a_directory_that_was_renamed_is_refused_at_once(
    guarded: Guarded, mode: str, rules: tuple[str, ...]
) -> None:
    mount = guarded({"dir/one": File(CONTENT), "dir/sub/two": File(CONTENT)}, *rules)
    (mount.root / "dir" / "made").write_bytes(CONTENT)
    names = ("one", "made")
    with (
        opened(mount.root / "dir" / "one", os.O_RDONLY) as one,
        opened(mount.root / "dir" / "made", os.O_RDONLY) as made,
    ):
        for fd in (one, made):
            assert os.pread(fd, 6, 0) == b"secret"
        os.rename(mount.root / "dir", mount.root / "moved")
        mount.allow("moved", mode)
        for fd in (one, made):
            with fails_with(REFUSED[mode]):
                os.pread(fd, 6, 0)
        for name in names:
            with fails_with(REFUSED[mode]):
                os.stat(mount.root / "moved" / name)


@pytest.mark.parametrize("mode", REFUSED)
def test_whoever_stands_in_a_directory_or_has_it_open_is_refused_at_once(
    mount: GuardedMount, mode: str
) -> None:
    with opened(mount.root / "dir", os.O_RDONLY | os.O_DIRECTORY) as fd:
        assert sorted(os.listdir(fd)) == ["one", "sub"]
        os.stat("sub/two", dir_fd=fd)
        mount.allow("dir", mode)
        for attempt in (
            lambda: os.listdir(fd),
            lambda: os.stat("one", dir_fd=fd),
            lambda: os.stat("sub/two", dir_fd=fd),
            lambda: os.open("one", os.O_RDONLY, dir_fd=fd),
            lambda: os.unlink("one", dir_fd=fd),
            lambda: os.rename("one", "two", src_dir_fd=fd, dst_dir_fd=fd),
        ):
            with fails_with(REFUSED[mode]):
                attempt()
        # Whether the directory itself is not found or the name in it refused is the kernel's choice.
        with pytest.raises(OSError):
            os.mkdir("new", dir_fd=fd)


def test_a_listing_that_has_begun_goes_on_without_what_was_hidden_meanwhile(guarded: Guarded) -> None:
    names = [f"{number:04}" for number in range(2000)]
    mount = guarded({f"many/{name}": "x" for name in names})
    with mount.open_dir("many") as listing:
        before = [name for name, _ in listing.read()]
        # What the kernel has asked for already is told; the daemon is asked for the rest.
        last = sorted(set(os.listdir(mount.root / "many")) - {os.fsdecode(name) for name in before})[-1]
        cookies = [cookie for _ in names for _, cookie in listing.read()]
        listing.seek(cookies[0])
        mount.allow(f"many/{last}", "hide")
        after = [name for _ in names for name, _ in listing.read()]
    assert os.fsencode(last) not in after
    assert len(after) > 1000


@pytest.mark.parametrize("mode", REFUSED)
def test_one_of_two_names_of_an_open_file_is_enough_to_refuse(mount: GuardedMount, mode: str) -> None:
    os.link(mount.root / "file", mount.root / "dir" / "second")
    with opened(mount.root / "file", os.O_RDWR) as fd:
        assert os.pread(fd, 6, 0) == b"secret"
        mount.allow("dir/second", mode)
        with fails_with(REFUSED[mode]):
            os.pread(fd, 6, 0)
        with fails_with(REFUSED[mode]):
            os.pwrite(fd, b"x", 0)


def test_the_whole_workspace_can_be_made_read_only_under_open_files(mount: GuardedMount) -> None:
    with (
        opened(mount.root / "file", os.O_RDWR) as fd,
        opened(mount.root / "new", os.O_RDWR | os.O_CREAT) as new,
    ):
        mount.ask("ro")
        for one in (fd, new):
            with fails_with(errno.EROFS):
                os.pwrite(one, b"x", 0)
        with fails_with(errno.EROFS):
            os.mkdir(mount.root / "dir-2")
        mount.ask("rw")
        os.pwrite(fd, b"x", 0)
        os.mkdir(mount.root / "dir-2")


def test_rules_that_are_turned_off_and_on_hold_again(guarded: Guarded) -> None:
    mount = guarded(
        {"hidden": "h\n", "denied": "d\n", "fixed": "f\n"}, "hidden=hide", "denied=deny", "fixed=ro"
    )
    mount.ask("disable")
    with opened(mount.root / "hidden", os.O_RDWR) as fd:
        assert sorted(os.listdir(mount.root)) == ["denied", "fixed", "hidden"]
        assert (mount.root / "denied").read_text() == "d\n"
        (mount.root / "fixed").write_text("changed\n")
        mount.ask("enable")
        assert sorted(os.listdir(mount.root)) == ["denied", "fixed"]
        with fails_with(errno.ENOENT):
            os.pread(fd, 1, 0)
    with fails_with(errno.EACCES):
        (mount.root / "denied").read_text()
    with fails_with(errno.EROFS):
        (mount.root / "fixed").write_text("again\n")


RUN_A_COPY = """
import os, subprocess, sys
print("ready")
sys.stdin.readline()
try:
    subprocess.run([sys.argv[1]], check=True)
except OSError as error:
    print(error.errno)
else:
    print("ran")
"""


@pytest.mark.parametrize("mode", REFUSED)
def test_a_program_cannot_be_run_once_it_is_forbidden(guarded: Guarded, mode: str) -> None:
    mount = guarded({"program": File(Path("/bin/true").read_bytes(), mode=0o755)})
    subprocess.run([mount.root / "program"], check=True)
    with companion(RUN_A_COPY, mount.root / "program", cwd=Path("/")) as runner:
        assert says(runner) == "ready"
        mount.allow("program", mode)
        tell(runner, "run")
        assert says(runner) == str(REFUSED[mode])


def test_a_file_without_a_name_stays_usable_in_a_place_that_is_writable(guarded: Guarded) -> None:
    mount = guarded({"tmp/": ""}, "tmp=rw", options=("--mode", "ro"))
    with opened(mount.root / "tmp" / "scratch", os.O_RDWR | os.O_CREAT) as fd:
        os.unlink(mount.root / "tmp" / "scratch")
        os.write(fd, b"scratch")
        os.ftruncate(fd, 4)
        assert os.pread(fd, 10, 0) == b"scra"
        mount.allow("elsewhere", "ro")
        os.pwrite(fd, b"again", 0)


def test_a_file_without_a_name_is_forbidden_with_the_directory_it_was_in(mount: GuardedMount) -> None:
    with opened(mount.root / "dir" / "one", os.O_RDWR) as fd:
        os.unlink(mount.root / "dir" / "one")
        os.pwrite(fd, b"x", 0)
        mount.ask("ro")
        with fails_with(errno.EROFS):
            os.pwrite(fd, b"y", 0)


MAKE_DEEP = """
import os
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
open("bottom", "w").write("deep")
"""


def test_a_very_deep_tree_does_not_keep_a_rule_from_being_tightened(mount: GuardedMount) -> None:
    run(sys.executable, "-c", MAKE_DEEP, cwd=mount.root)
    # A rule in it makes the move look at everything below.
    mount.allow("d/x/y", "ro")
    folder = os.open(mount.root, os.O_PATH)
    for _ in range(1500):
        inner = os.open("d", os.O_PATH, dir_fd=folder)
        os.close(folder)
        folder = inner
    try:
        with opened(f"/proc/self/fd/{folder}/bottom", os.O_RDWR) as fd:
            os.rename(mount.root / "d", mount.root / "e")
            mount.allow("e", "deny")
            with fails_with(errno.EACCES):
                os.pread(fd, 4, 0)
            mount.allow("e", "rw")
            assert os.pread(fd, 4, 0) == b"deep"
    finally:
        os.close(folder)
        # Too deep for what clears temporary directories away.
        run("rm", "-rf", "e", "d", cwd=mount.root, status=None)
