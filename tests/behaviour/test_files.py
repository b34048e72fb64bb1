"""Files: what is written is read, wherever it lay before, and the workspace hears nothing of it."""

import errno
import os
from pathlib import Path

import pytest

from tests.conftest import STANDARD, MakeSandbox
from tests.support.claims import fails_with, upper_names
from tests.support.drivers import HostTree, Sandbox
from tests.support.tree import build


def test_a_lower_file_reads_as_it_is(sandbox: Sandbox) -> None:
    assert sandbox.read("file") == b"lower text\n"
    assert sandbox.read("dir/deep/er/bottom") == b"bottom\n"
    assert sandbox.read("empty") == b""


def test_reading_copies_nothing_up(sandbox: Sandbox) -> None:
    sandbox.read("dir/deep/leaf")
    sandbox.names("dir")
    sandbox.lstat("dir/one")
    sandbox.readlink("link")
    assert upper_names(sandbox.upper) == []


def test_a_new_file_is_in_the_view_and_in_upper_only(sandbox: Sandbox) -> None:
    sandbox.create("new", b"text")
    assert sandbox.read("new") == b"text"
    assert (sandbox.upper / "new").read_bytes() == b"text"
    assert not (sandbox.lower / "new").exists()


def test_a_new_file_in_a_lower_directory_brings_only_its_parents_up(sandbox: Sandbox) -> None:
    sandbox.create("dir/deep/new", b"text")
    assert upper_names(sandbox.upper) == ["dir", "dir/deep", "dir/deep/new"]
    assert sorted(sandbox.names("dir/deep")) == [b"er", b"leaf", b"new"]


def test_overwriting_a_lower_file_changes_the_view_and_not_the_workspace(sandbox: Sandbox) -> None:
    sandbox.write("file", b"UPPER", flags=0)
    assert sandbox.read("file") == b"UPPER text\n"
    assert (sandbox.lower / "file").read_bytes() == b"lower text\n"


def test_an_opening_for_writing_that_writes_nothing_keeps_the_content(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        assert file.pread(100, 0) == b"lower text\n"
    assert sandbox.read("file") == b"lower text\n"


def test_a_truncating_open_copies_no_data_up(make_sandbox: MakeSandbox) -> None:
    size = 64 << 20
    sandbox = make_sandbox({"big": b""})
    os.truncate(sandbox.lower / "big", size)
    with open(sandbox.lower / "big", "r+b") as big:
        big.write(b"x" * (1 << 20))
    sandbox.host_changed()
    with sandbox.open("big", os.O_WRONLY | os.O_TRUNC) as file:
        assert file.stat().st_size == 0
        assert (sandbox.upper / "big").stat().st_blocks == 0
        assert list(sandbox.work.iterdir()) == []
        file.pwrite(b"new", 0)
    assert sandbox.read("big") == b"new"


def test_appending_goes_to_the_end_whatever_others_wrote(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_WRONLY | os.O_APPEND) as log, sandbox.open("file", os.O_RDWR) as other:
        log.append(b"one\n")
        other.pwrite(b"two\n", other.stat().st_size)
        log.append(b"three\n")
    assert sandbox.read("file") == b"lower text\none\ntwo\nthree\n"


def test_exclusive_creation_of_a_lower_name_fails(sandbox: Sandbox) -> None:
    for name in ("file", "dir", "link", "dangling", "fifo"):
        with fails_with(errno.EEXIST):
            sandbox.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def test_exclusive_creation_of_a_deleted_name_succeeds(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    sandbox.create("file", b"mine")
    assert sandbox.read("file") == b"mine"


@pytest.mark.parametrize("name", ["file", "dir", "hollow", "missing", "missing/below", "file/below"])
@pytest.mark.parametrize("access", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR], ids=["rdonly", "wronly", "rdwr"])
def test_open_flags_give_what_a_plain_directory_gives(
    sandbox: Sandbox, tmp_path: Path, name: str, access: int
) -> None:
    def outcome(tree: HostTree | Sandbox, flags: int) -> object:
        try:
            with tree.open(name, flags) as file:
                return file.stat().st_size
        except OSError as error:
            return error.errno

    optional = [os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_NOFOLLOW]
    for chosen in range(1 << len(optional)):
        flags = access | sum(flag for bit, flag in enumerate(optional) if chosen >> bit & 1)
        # What these ask of a directory is no business of files, and O_EXCL alone means nothing.
        if name in ("dir", "hollow") and access == os.O_RDONLY:
            continue
        if flags & os.O_EXCL and not flags & os.O_CREAT:
            continue
        plain = HostTree(build(tmp_path / f"plain{chosen}", STANDARD))
        expected = outcome(plain, flags)
        assert outcome(sandbox, flags) == expected, f"flags {flags:#o}"
        if not plain.exists("missing") and sandbox.exists("missing"):
            pytest.fail(f"flags {flags:#o} made a file")
        if sandbox.exists("missing"):
            sandbox.unlink("missing")
        if name == "file":
            sandbox.write("file", b"lower text\n")


def test_a_file_keeps_its_holes_through_copy_up(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"sparse": b""})
    with open(sandbox.lower / "sparse", "r+b") as file:
        file.truncate(1 << 30)
        file.seek(1 << 29)
        file.write(b"island")
    sandbox.host_changed()
    sandbox.chmod("sparse", 0o600)
    copied = (sandbox.upper / "sparse").stat()
    assert copied.st_size == 1 << 30
    assert copied.st_blocks * 512 < 10 << 20
    with sandbox.open("sparse", os.O_RDONLY) as view:
        assert view.pread(10, (1 << 29) - 2) == b"\0\0island\0\0"


def test_writing_beyond_the_end_leaves_zeroes_between(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"far", 100_000)
        assert file.pread(10, 50_000) == b"\0" * 10
        assert file.stat().st_size == 100_003
    assert sandbox.read("file")[:11] == b"lower text\n"


def test_files_over_four_gibibytes_are_written_and_read_at_their_end(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"huge": b""})
    os.truncate(sandbox.lower / "huge", 5 << 30)
    sandbox.host_changed()
    with sandbox.open("huge", os.O_RDWR) as file:
        assert file.stat().st_size == 5 << 30
        file.pwrite(b"end", (5 << 30) - 1)
        assert file.pread(10, (5 << 30) - 2) == b"\0end"
        assert file.stat().st_size == (5 << 30) + 2
    assert sandbox.stat("huge").st_size == (5 << 30) + 2


def test_truncate_shortens_and_lengthens_a_lower_file(sandbox: Sandbox) -> None:
    sandbox.truncate("file", 5)
    assert sandbox.read("file") == b"lower"
    sandbox.truncate("file", 8)
    assert sandbox.read("file") == b"lower\0\0\0"
    assert (sandbox.lower / "file").read_bytes() == b"lower text\n"


def test_truncate_through_an_open_file_works(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.truncate(3)
        assert file.stat().st_size == 3
        assert sandbox.stat("file").st_size == 3


@pytest.mark.parametrize(
    "name", [b"n" * 255, b"\xff\xfe\x80 latin", b"new\nline", b" ", b"-rf", b"\xe4\xb8\xad"]
)
def test_odd_names_are_made_listed_read_and_removed(sandbox: Sandbox, name: bytes) -> None:
    sandbox.create(name, b"odd")
    assert name in sandbox.names()
    assert sandbox.read(name) == b"odd"
    sandbox.unlink(name)
    assert name not in sandbox.names()


def test_odd_lower_names_are_listed_changed_and_hidden(make_sandbox: MakeSandbox) -> None:
    names = [b"n" * 255, b"\xff\xfe\x80 latin", b"new\nline"]
    sandbox = make_sandbox(dict.fromkeys(names, "odd"))
    assert sorted(sandbox.names()) == sorted(names)
    sandbox.append(names[0], b"!")
    assert sandbox.read(names[0]) == b"odd!"
    sandbox.unlink(names[1])
    assert sorted(sandbox.names()) == sorted([names[0], names[2]])


def test_a_name_of_256_bytes_is_too_long(sandbox: Sandbox) -> None:
    name = "n" * 256
    for attempt in (sandbox.lstat, sandbox.create, sandbox.mkdir, sandbox.unlink):
        with fails_with(errno.ENAMETOOLONG):
            attempt(name)


def test_a_file_sixty_directories_deep_is_made_and_changed(make_sandbox: MakeSandbox) -> None:
    lower = "/".join(["l"] * 60)
    sandbox = make_sandbox({f"{lower}/file": "deep"})
    assert sandbox.read(f"{lower}/file") == b"deep"
    sandbox.append(f"{lower}/file", b"er")
    assert sandbox.read(f"{lower}/file") == b"deeper"
    path = "u"
    for _ in range(59):
        sandbox.mkdir(path)
        path += "/u"
    sandbox.create(path, b"new")
    assert sandbox.read(path) == b"new"


def test_changes_outlast_the_session(sandbox: Sandbox) -> None:
    sandbox.append("file", b"more\n")
    sandbox.create("new", b"new")
    sandbox.unlink("other")
    sandbox.mkdir("made")
    sandbox.remount()
    assert sandbox.read("file") == b"lower text\nmore\n"
    assert sandbox.read("new") == b"new"
    assert not sandbox.exists("other")
    assert sandbox.is_dir("made")


def test_fsync_of_a_changed_and_of_an_unchanged_file_succeeds(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDWR) as file:
        file.pwrite(b"x", 0)
        file.fsync()
    with sandbox.open("other", os.O_RDONLY) as file:
        file.fsync()


def test_a_file_without_any_permission_is_still_there(sandbox: Sandbox) -> None:
    with sandbox.open("new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0) as file:
        file.pwrite(b"secret", 0)
        assert file.pread(10, 0) == b"secret"
    assert sandbox.stat("new").st_mode & 0o7777 == 0


def test_a_read_only_file_can_be_written_by_who_made_it(sandbox: Sandbox) -> None:
    """git writes its objects like this."""
    with sandbox.open("object", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444) as file:
        file.pwrite(b"blob", 0)
    assert sandbox.read("object") == b"blob"
    assert sandbox.stat("object").st_mode & 0o7777 == 0o444


@pytest.mark.own_mount
def test_statvfs_speaks_of_the_filesystem_that_takes_the_writes(sandbox: Sandbox) -> None:
    here, host = sandbox.statvfs(), os.statvfs(sandbox.upper)
    assert here.f_blocks * here.f_frsize == host.f_blocks * host.f_frsize
    assert here.f_namemax == 255
