"""What the workspace was is written down before the sandbox hides it, once, with its bytes where needed."""

import os
import stat
from collections.abc import Callable

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper.baseline import LIMIT, Baseline, BaselineEntry
from tests.conftest import MakeSandbox
from tests.support.drivers import Sandbox
from tests.support.syscalls import RENAME_EXCHANGE


def baseline_entries(sandbox: Sandbox) -> dict[str, BaselineEntry]:
    """All entries but the workspace's own."""
    with HostDir.at(sandbox.baseline) as directory:
        noted = Baseline.load(directory).below(sandbox.top)
    return {os.fsdecode(one.path.removeprefix(sandbox.top).lstrip(b"/")): one for one in noted}


def contents(sandbox: Sandbox) -> dict[str, bytes]:
    """The paths that were sighted and whose bytes were saved."""
    with HostDir.at(sandbox.baseline) as directory:
        baseline = Baseline.load(directory)
        read = {path: baseline.content(one) for path, one in baseline_entries(sandbox).items()}
    return {path: content for path, content in read.items() if content is not None}


def lines(sandbox: Sandbox) -> int:
    return (sandbox.baseline / "log").read_bytes().count(b"\n")


def test_looking_notes_nothing(sandbox: Sandbox) -> None:
    sandbox.read("file")
    sandbox.names("dir")
    sandbox.readlink("link")
    assert baseline_entries(sandbox) == {}


@pytest.mark.own_mount
def test_the_workspace_itself_is_noted(sandbox: Sandbox) -> None:
    with HostDir.at(sandbox.baseline) as directory:
        root = Baseline.load(directory).get(sandbox.top)
    assert root is not None
    assert (root.mode, root.ino) == (sandbox.lower.stat().st_mode, sandbox.lower.stat().st_ino)


CHANGES: dict[str, Callable[[Sandbox], object]] = {
    "write": lambda sandbox: sandbox.write("file", b"new", flags=0),
    "overwrite": lambda sandbox: sandbox.write("file", b"new"),
    "append": lambda sandbox: sandbox.append("file", b"new"),
    "truncate": lambda sandbox: sandbox.truncate("file", 0),
    "chmod": lambda sandbox: sandbox.chmod("file", 0o600),
    "utime": lambda sandbox: sandbox.utime("file", 1, 2),
    "setxattr": lambda sandbox: sandbox.setxattr("file", "user.colour", b"red"),
    "link": lambda sandbox: sandbox.link("file", "new"),
    "rename": lambda sandbox: sandbox.rename("file", "new"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_noted_with_its_bytes(sandbox: Sandbox, change: str) -> None:
    status = sandbox.lstat("file")
    CHANGES[change](sandbox)
    assert list(baseline_entries(sandbox)) == ["file"]
    assert contents(sandbox) == {"file": b"lower text\n"}
    noted = baseline_entries(sandbox)["file"]
    lower = (sandbox.lower / "file").lstat()
    assert (noted.mode, noted.uid, noted.gid, noted.size) == (
        lower.st_mode,
        lower.st_uid,
        lower.st_gid,
        lower.st_size,
    )
    assert (noted.dev, noted.ino, noted.nlink) == (lower.st_dev, lower.st_ino, lower.st_nlink)
    assert (noted.mtime_ns, noted.ctime_ns) == (lower.st_mtime_ns, lower.st_ctime_ns)
    assert noted.number == status.st_ino


def test_what_is_changed_twice_is_noted_once(sandbox: Sandbox) -> None:
    sandbox.append("file", b"one")
    (sandbox.lower / "file").write_bytes(b"the host's")
    sandbox.host_changed()
    count = lines(sandbox)
    sandbox.append("file", b"two")
    sandbox.chmod("file", 0o600)
    sandbox.unlink("file")
    sandbox.remount()
    sandbox.create("file", b"again")
    sandbox.unlink("file")
    assert contents(sandbox) == {"file": b"lower text\n"}
    # Of the file made again, bytes were kept that are not what was noted, and count for nothing.
    assert lines(sandbox) <= count + 1


def test_a_deleted_file_is_noted_without_its_bytes(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    assert list(baseline_entries(sandbox)) == ["file"]
    assert baseline_entries(sandbox)["file"].digest is not None
    assert contents(sandbox) == {}


@pytest.mark.parametrize("name", ["link", "fifo"])
def test_what_is_no_regular_file_is_noted(sandbox: Sandbox, name: str) -> None:
    sandbox.unlink(name)
    noted = baseline_entries(sandbox)[name]
    assert noted.mode == (sandbox.lower / name).lstat().st_mode
    assert noted.target == (b"file" if name == "link" else None)


def test_a_removed_tree_is_noted_whole(sandbox: Sandbox) -> None:
    sandbox.remove_tree("dir")
    wanted = ["dir", *(f"dir/{name}" for name in ("deep", "deep/er", "deep/er/bottom", "deep/leaf"))]
    assert sorted(baseline_entries(sandbox)) == [*wanted, "dir/hard3", "dir/one", "dir/two"]
    assert stat.S_ISDIR(baseline_entries(sandbox)["dir"].mode)


def test_the_directories_above_a_change_are_noted(sandbox: Sandbox) -> None:
    sandbox.chmod("dir/deep/er/bottom", 0o600)
    assert sorted(baseline_entries(sandbox)) == ["dir", "dir/deep", "dir/deep/er", "dir/deep/er/bottom"]
    noted = baseline_entries(sandbox)["dir/deep"]
    assert noted.ino == (sandbox.lower / "dir/deep").stat().st_ino
    assert noted.number == sandbox.lstat("dir/deep").st_ino


def test_what_the_workspace_does_not_have_is_not_noted(sandbox: Sandbox) -> None:
    sandbox.create("new", b"new")
    sandbox.mkdir("newdir")
    sandbox.symlink("x", "newlink")
    sandbox.rename("new", "newer")
    sandbox.unlink("newer")
    assert baseline_entries(sandbox) == {}


def test_a_file_that_another_is_moved_over_is_noted_with_its_bytes(sandbox: Sandbox) -> None:
    sandbox.create("new", b"new")
    sandbox.rename("new", "file")
    assert contents(sandbox) == {"file": b"lower text\n"}


def test_a_file_that_a_symlink_is_moved_over_is_noted_without_its_bytes(sandbox: Sandbox) -> None:
    sandbox.symlink("x", "new")
    sandbox.rename("new", "file")
    assert list(baseline_entries(sandbox)) == ["file"]
    assert contents(sandbox) == {}


def test_a_directory_that_another_is_moved_over_is_noted(sandbox: Sandbox) -> None:
    sandbox.mkdir("new")
    sandbox.rename("new", "hollow")
    assert list(baseline_entries(sandbox)) == ["hollow"]


def test_both_ends_of_an_exchange_are_noted(sandbox: Sandbox) -> None:
    sandbox.rename("file", "other", RENAME_EXCHANGE)
    assert contents(sandbox) == {"file": b"lower text\n", "other": b"other lower text\n"}


MAKERS: dict[str, Callable[[Sandbox], object]] = {
    "create": lambda sandbox: sandbox.create("file", b"new"),
    "mknod": lambda sandbox: sandbox.mkfifo("file"),
    "symlink": lambda sandbox: sandbox.symlink("x", "file"),
    "link": lambda sandbox: sandbox.link("made", "file"),
    "rename": lambda sandbox: sandbox.rename("made", "file"),
}


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_made_where_a_file_was_deleted_has_its_bytes_kept(sandbox: Sandbox, make: str) -> None:
    sandbox.create("made", b"made")
    sandbox.unlink("file")
    assert contents(sandbox) == {}
    MAKERS[make](sandbox)
    assert contents(sandbox) == {"file": b"lower text\n"}


def test_bytes_that_changed_since_the_deletion_are_not_kept(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    noted = baseline_entries(sandbox)["file"]
    (sandbox.lower / "file").write_bytes(b"LOWER TEXT\n")
    sandbox.host_changed()
    sandbox.create("file", b"new")
    assert baseline_entries(sandbox)["file"] == noted


def test_a_directory_made_where_a_file_was_deleted_keeps_nothing(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    sandbox.mkdir("file")
    assert contents(sandbox) == {}


def test_below_a_renamed_directory_the_paths_are_those_of_the_workspace(sandbox: Sandbox) -> None:
    sandbox.rename("dir", "moved")
    assert list(baseline_entries(sandbox)) == ["dir"]
    sandbox.append("moved/one", b"more")
    sandbox.unlink("moved/two")
    sandbox.create("moved/two", b"new")
    sandbox.rename("moved/deep", "hollow/deep")
    sandbox.chmod("hollow/deep/leaf", 0o600)
    noted = sorted(baseline_entries(sandbox))
    assert noted == ["dir", "dir/deep", "dir/deep/leaf", "dir/one", "dir/two", "hollow"]
    assert contents(sandbox) == {"dir/one": b"1\n", "dir/two": b"2\n", "dir/deep/leaf": b"leaf\n"}


def test_every_name_of_a_hard_linked_file_is_noted_when_the_upper_gets_it(sandbox: Sandbox) -> None:
    number = sandbox.lstat("hard1").st_ino
    sandbox.append("hard1", b"more")
    assert list(baseline_entries(sandbox)) == ["hard1"]
    sandbox.rename("hard2", "renamed")
    assert contents(sandbox) == {"hard1": b"shared\n", "hard2": b"shared\n"}
    sandbox.unlink("dir/hard3")
    noted = baseline_entries(sandbox)
    assert sorted(noted) == ["dir", "dir/hard3", "hard1", "hard2"]
    assert {noted[name].number for name in ("hard1", "hard2", "dir/hard3")} == {number}
    assert noted["dir/hard3"].nlink == 3


def test_a_hard_linked_name_that_another_file_is_moved_over_is_noted(sandbox: Sandbox) -> None:
    sandbox.chmod("hard1", 0o600)
    sandbox.create("new", b"new")
    sandbox.rename("new", "hard2")
    assert contents(sandbox) == {"hard1": b"shared\n", "hard2": b"shared\n"}


def test_a_file_over_the_limit_is_noted_without_digest_and_bytes(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"large": b"x" * (LIMIT + 1)})
    sandbox.append("large", b"y")
    noted = baseline_entries(sandbox)["large"]
    assert (noted.size, noted.digest, noted.saved) == (LIMIT + 1, None, None)


@pytest.mark.parametrize("name", [b"\xff\xfe", b"two\nlines", b'"'])
def test_any_name_is_noted(make_sandbox: MakeSandbox, name: bytes) -> None:
    sandbox = make_sandbox({name: "odd\n"})
    sandbox.append(name, b"more")
    assert contents(sandbox) == {os.fsdecode(name): b"odd\n"}


def test_the_baseline_is_kept_as_long_as_the_upper_has_entries(sandbox: Sandbox) -> None:
    sandbox.append("file", b"more")
    sandbox.unlink("other")
    sandbox.remount()
    assert sorted(baseline_entries(sandbox)) == ["file", "other"]
    sandbox.append("script", b"more")
    assert sorted(contents(sandbox)) == ["file", "script"]


@pytest.mark.own_mount
def test_a_session_on_an_upper_without_entries_starts_an_empty_baseline(sandbox: Sandbox) -> None:
    sandbox.chmod("file", 0o600)
    sandbox.stop()
    (sandbox.upper / "file").unlink()
    sandbox.start()
    assert baseline_entries(sandbox) == {}
    assert (sandbox.baseline / "pack").read_bytes() == b""
    with HostDir.at(sandbox.baseline) as directory:
        assert Baseline.load(directory).get(b"") is not None
