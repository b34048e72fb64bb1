"""What the host does to the workspace: seen within a second where the sandbox has changed nothing itself."""

import os
import shutil

import pytest

from tests.support.claims import within_a_second
from tests.support.drivers import Sandbox


def names(sandbox: Sandbox, path: str = ".") -> set[bytes]:
    return set(sandbox.names(path))


def test_an_edit_of_an_unchanged_file_shows(sandbox: Sandbox) -> None:
    assert sandbox.read("file") == b"lower text\n"
    (sandbox.lower / "file").write_text("edited on the host\n")
    sandbox.host_changed()
    assert within_a_second(lambda: sandbox.read("file") == b"edited on the host\n")
    assert sandbox.stat("file").st_size == 19


def test_a_file_replaced_by_rename_shows(sandbox: Sandbox) -> None:
    """Editors save like this."""
    assert sandbox.read("dir/one") == b"1\n"
    (sandbox.lower / "dir" / "one.tmp").write_text("saved\n")
    (sandbox.lower / "dir" / "one.tmp").rename(sandbox.lower / "dir" / "one")
    sandbox.host_changed()
    assert within_a_second(lambda: sandbox.read("dir/one") == b"saved\n")


def test_a_new_file_shows(sandbox: Sandbox) -> None:
    assert not sandbox.exists("dir/new")
    assert b"new" not in names(sandbox, "dir")
    (sandbox.lower / "dir" / "new").write_text("new\n")
    sandbox.host_changed()
    assert within_a_second(lambda: sandbox.exists("dir/new"))
    assert sandbox.read("dir/new") == b"new\n"
    assert b"new" in names(sandbox, "dir")


def test_a_removed_file_goes(sandbox: Sandbox) -> None:
    assert sandbox.exists("file")
    (sandbox.lower / "file").unlink()
    sandbox.host_changed()
    assert within_a_second(lambda: not sandbox.exists("file"))
    assert b"file" not in names(sandbox)


def test_a_changed_mode_shows(sandbox: Sandbox) -> None:
    sandbox.stat("file")
    os.chmod(sandbox.lower / "file", 0o600)
    sandbox.host_changed()
    assert within_a_second(lambda: sandbox.stat("file").st_mode & 0o7777 == 0o600)


def test_a_file_that_the_sandbox_changed_stays_as_the_sandbox_has_it(sandbox: Sandbox) -> None:
    sandbox.append("file", b"mine\n")
    (sandbox.lower / "file").write_text("theirs\n")
    sandbox.host_changed()
    sandbox.forget()
    assert sandbox.read("file") == b"lower text\nmine\n"
    sandbox.remount()
    assert sandbox.read("file") == b"lower text\nmine\n"


def test_a_name_that_the_sandbox_deleted_stays_deleted(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    (sandbox.lower / "file").write_text("theirs\n")
    sandbox.host_changed()
    assert not sandbox.exists("file")


def test_a_new_file_in_a_directory_that_the_sandbox_changed_shows(sandbox: Sandbox) -> None:
    sandbox.create("dir/mine")
    (sandbox.lower / "dir" / "theirs").write_text("theirs\n")
    sandbox.host_changed()
    assert within_a_second(lambda: {b"mine", b"theirs"} <= names(sandbox, "dir"))
    assert within_a_second(lambda: sandbox.exists("dir/theirs"))


@pytest.mark.parametrize("name", ["file", "dir"])
def test_a_thing_that_becomes_another_kind_shows_as_what_it_is(sandbox: Sandbox, name: str) -> None:
    if sandbox.is_dir(name):
        sandbox.names(name)
        shutil.rmtree(sandbox.lower / name)
        (sandbox.lower / name).write_text("now a file\n")
        sandbox.host_changed()
        assert within_a_second(lambda: not sandbox.is_dir(name) and sandbox.read(name) == b"now a file\n")
    else:
        sandbox.read(name)
        (sandbox.lower / name).unlink()
        (sandbox.lower / name).mkdir()
        sandbox.host_changed()
        assert within_a_second(lambda: sandbox.is_dir(name) and sandbox.names(name) == [])


def test_a_directory_that_becomes_a_file_while_it_is_listed_does_no_harm(sandbox: Sandbox) -> None:
    with sandbox.open_dir("dir") as directory:
        directory.read()
        shutil.rmtree(sandbox.lower / "dir")
        (sandbox.lower / "dir").write_text("now a file\n")
        sandbox.host_changed()
        directory.seek(0)
        try:
            while directory.read():
                pass
        except OSError:
            pass
    assert within_a_second(lambda: not sandbox.is_dir("dir"))
    assert sandbox.read("other") == b"other lower text\n"


def test_a_lower_file_that_vanishes_while_open_can_still_be_read(sandbox: Sandbox) -> None:
    with sandbox.open("file", os.O_RDONLY) as file:
        (sandbox.lower / "file").unlink()
        sandbox.host_changed()
        assert file.pread(100, 0) == b"lower text\n"


def test_a_lower_file_that_vanishes_before_it_is_written_fails_cleanly(sandbox: Sandbox) -> None:
    sandbox.stat("file")
    (sandbox.lower / "file").unlink()
    sandbox.host_changed()
    try:
        sandbox.write("file", b"x", flags=0)
    except FileNotFoundError:
        pass
    except OSError as error:
        pytest.fail(f"an error that says nothing of the cause: {error}")
    sandbox.create("after", b"the view goes on")
    assert sandbox.read("after") == b"the view goes on"


def test_a_directory_that_the_host_moves_shows_at_its_new_place(sandbox: Sandbox) -> None:
    assert sandbox.read("dir/deep/leaf") == b"leaf\n"
    (sandbox.lower / "dir").rename(sandbox.lower / "elsewhere")
    sandbox.host_changed()
    assert within_a_second(lambda: not sandbox.exists("dir"))
    assert within_a_second(lambda: sandbox.exists("elsewhere/deep/leaf"))
    assert sandbox.read("elsewhere/deep/leaf") == b"leaf\n"
