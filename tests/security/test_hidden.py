"""Does anything that the view answers tell of what is hidden, and can it be harmed unseen?"""

import errno
import os
import stat

import pytest

from tests.security.conftest import Guarded
from tests.support.claims import fails_with, upper_names
from tests.support.dirstream import DirStream
from tests.support.guarded import MakeArea, SharedGuardedMount
from tests.support.mounted import run
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, renameat2


def test_no_listing_tells_a_hidden_name(area: MakeArea) -> None:
    made = area({"hidden": "h", "hidden-dir/x": "x", "seen": "s", "dir/hidden": "h", "dir/seen": "s"})
    assert sorted(os.listdir(made.view)) == ["dir", "seen"]
    assert sorted(entry.name for entry in os.scandir(made.view)) == ["dir", "seen"]
    found = run("find", ".", cwd=made.view).split()
    assert sorted(found) == [".", "./dir", "./dir/seen", "./seen"]
    assert "hidden" not in run("ls", "-lAR", cwd=made.view)


def test_a_long_listing_that_is_read_in_pieces_skips_hidden_names_and_no_other(area: MakeArea) -> None:
    names = [f"{'hidden' if number % 3 else 'seen'}-{number:04}" for number in range(900)]
    made = area(dict.fromkeys(names, "x"))
    assert sorted(os.listdir(made.view)) == [name for name in names if name.startswith("seen")]


def test_a_listing_that_was_read_before_does_not_tell_what_is_hidden_since(guarded: Guarded) -> None:
    mount = guarded({"dir/one": "1", "dir/two": "2"})
    folder = mount.root / "dir"
    for _ in range(2):
        assert sorted(os.listdir(folder)) == ["one", "two"]
    with DirStream(folder) as stream:
        assert len(list(stream.rest())) == 4
        mount.allow("dir/one", "hide")
        assert os.listdir(folder) == ["two"]
        stream.rewind()
        assert sorted(entry.name for entry in stream.rest()) == [b".", b"..", b"two"]
        mount.allow("dir/one", "rw")
        assert sorted(os.listdir(folder)) == ["one", "two"]
        stream.rewind()
        assert len(list(stream.rest())) == 4


@pytest.mark.parametrize("name", ["hidden", "hidden-dir", "hidden-link", "hidden-absent"])
def test_a_hidden_name_answers_as_one_that_is_not_there(area: MakeArea, name: str) -> None:
    made = area({"hidden": "h", "hidden-dir/x": "x", "hidden-link": "l", "free": "f"})
    path = os.fspath(made.view / name)
    for attempt in (
        lambda: os.stat(path),
        lambda: os.lstat(path),
        lambda: os.open(path, os.O_RDONLY),
        lambda: os.open(path, os.O_WRONLY),
        lambda: os.open(path, os.O_PATH),
        lambda: os.listdir(path),
        lambda: os.readlink(path),
        lambda: os.unlink(path),
        lambda: os.rmdir(path),
        lambda: os.rename(path, f"{path}-2"),
        lambda: os.rename(path, os.fspath(made.view / "free")),
        lambda: os.link(path, os.fspath(made.view / "linked")),
        lambda: os.chmod(path, 0o777),
        lambda: os.chown(path, 0, 0),
        lambda: os.utime(path),
        lambda: os.truncate(path, 0),
        lambda: os.getxattr(path, "user.x"),
        lambda: os.setxattr(path, "user.x", b"x"),
        lambda: os.listxattr(path),
        lambda: os.stat(f"{path}/x"),
        lambda: os.open(f"{path}/x", os.O_CREAT | os.O_WRONLY),
        lambda: os.mkdir(f"{path}/x"),
    ):
        with fails_with(errno.ENOENT):
            attempt()
    assert not os.access(path, os.F_OK)
    assert upper_names(made.upper) == []


def test_the_link_count_of_a_directory_does_not_tell_of_hidden_directories(area: MakeArea) -> None:
    made = area({"with/seen/": "", "with/hidden-1/": "", "with/hidden-2/": "", "without/seen/": ""})
    assert os.stat(made.view / "with").st_nlink == os.stat(made.view / "without").st_nlink


def test_changing_a_directory_does_not_make_its_link_count_tell(area: MakeArea) -> None:
    made = area({"with/seen/": "", "with/hidden/": "", "without/seen/": ""})
    for name in ("with", "without"):
        (made.view / name / "new").mkdir()
    assert os.stat(made.view / "with").st_nlink == os.stat(made.view / "without").st_nlink


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT])
def test_a_rename_cannot_replace_a_hidden_name(area: MakeArea, flags: int) -> None:
    made = area({"hidden": "secret\n", "free": "f\n"})
    with pytest.raises(OSError):
        renameat2(os.fsencode(made.view / "free"), os.fsencode(made.view / "hidden"), flags)
    with pytest.raises(OSError):
        renameat2(os.fsencode(made.view / "hidden"), os.fsencode(made.view / "free"), flags)
    assert (made.view / "free").read_text() == "f\n"
    assert upper_names(made.upper) == []


def test_a_hidden_name_cannot_be_covered_by_a_whiteout(area: MakeArea) -> None:
    made = area({"dir/hidden": "secret\n", "dir/seen": "s\n"})
    with fails_with(errno.ENOENT):
        os.unlink(made.view / "dir" / "hidden")
    for name in ("hidden", "hidden-2"):
        # A character device of number 0 is what a whiteout is on the disk.
        with pytest.raises(OSError):
            os.mknod(made.view / "dir" / name, stat.S_IFCHR | 0o644, 0)
    assert upper_names(made.upper) == []


def test_the_marks_of_the_upper_cannot_be_set_through_the_view(area: MakeArea) -> None:
    made = area({"dir/hidden": "secret\n", "dir/seen": "s\n", "hidden-dir/x": "x\n"})
    for mark, value in (("opaque", b"y"), ("redirect", b"hidden-dir"), ("whiteout", b"y"), ("origin", b"x")):
        for path in (made.view / "dir", made.view / "dir" / "seen"):
            with fails_with(errno.EPERM):
                os.setxattr(path, f"user.overlay.{mark}", value)
    assert os.listdir(made.view / "dir") == ["seen"]


def test_a_directory_that_holds_only_hidden_names_cannot_be_removed(area: MakeArea) -> None:
    made = area({"dir/hidden": "secret\n", "dir/hidden-dir/x": "x\n"})
    assert os.listdir(made.view / "dir") == []
    with fails_with(errno.EACCES):
        os.rmdir(made.view / "dir")
    assert upper_names(made.upper) == []


def test_a_directory_that_holds_only_hidden_names_cannot_be_replaced(area: MakeArea) -> None:
    made = area({"dir/hidden": "secret\n", "other/x": "x\n"})
    with pytest.raises(OSError):
        os.rename(made.view / "other", made.view / "dir")
    assert (made.view / "other" / "x").exists()
    assert upper_names(made.upper) == []


def test_removing_a_whole_tree_leaves_what_is_hidden_in_it(area: MakeArea) -> None:
    made = area({"dir/hidden": "secret\n", "dir/seen": "s\n", "dir/sub/x": "x\n"})
    run("rm", "-rf", "dir", cwd=made.view, status=1)
    assert os.listdir(made.view / "dir") == []
    assert sorted(upper_names(made.upper)) == ["dir", "dir/seen", "dir/sub"]
    assert (made.lower / "dir" / "hidden").read_text() == "secret\n"


def test_hidden_content_goes_along_unseen_and_unharmed_when_its_directory_moves(
    area: MakeArea, shared_mount: SharedGuardedMount
) -> None:
    made = area({"dir/hidden": "secret\n", "dir/seen": "s\n"})
    os.rename(made.view / "dir", made.view / "moved")
    assert os.listdir(made.view / "moved") == ["seen"]
    with fails_with(errno.ENOENT):
        os.stat(made.view / "moved" / "hidden")
    with fails_with(errno.EACCES):
        (made.view / "moved" / "hidden").write_text("planted")


def test_refused_moves_do_not_tell_in_the_denials_which_hidden_names_there_are(
    area: MakeArea, shared_mount: SharedGuardedMount
) -> None:
    made = area({"box/vault/secret": "s\n", "box/vault/x": "x\n"})
    with pytest.raises(OSError):
        os.rename(made.view / "box" / "vault", made.view / "box" / "plain")
    told = (shared_mount.root / ".sandboxfs" / "denials").read_text()
    assert f"{made.view.name}/box/vault/secret" not in told


def test_the_list_of_changes_does_not_tell_hidden_names(
    area: MakeArea, shared_mount: SharedGuardedMount
) -> None:
    made = area({"dir/x": "x\n"})
    (made.view / "dir" / "unlucky-name").write_text("made before the rule\n")
    shared_mount.allow(f"{made.view.name}/dir/unlucky-name", "hide")
    assert "unlucky-name" not in os.listdir(made.view / "dir")
    assert "unlucky-name" not in (shared_mount.root / ".sandboxfs" / "changes").read_text()


def test_making_something_where_a_directory_is_hidden_tells_nothing_of_its_being_a_directory(
    area: MakeArea,
) -> None:
    made = area({"vanish/x": "x", "file": "f"})
    path = os.fspath(made.view / "vanish")
    for attempt in (
        lambda: os.open(path, os.O_CREAT | os.O_WRONLY),
        lambda: os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY),
        lambda: os.mkdir(path),
        lambda: os.mkfifo(path),
        lambda: os.symlink("file", path),
        lambda: os.link(made.view / "file", path),
    ):
        with fails_with(errno.EACCES):
            attempt()
