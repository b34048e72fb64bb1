"""Does the view follow what the host does to the workspace, and bear what it does at a bad moment?

Every test looks first, so that the kernel has something to remember wrongly.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dirstream import DirStream
from tests.support.host_edits import overwrite, replace
from tests.support.mounted import PATIENCE, Area, companion, eventually, says
from tests.support.tree import LONG_AGO, Symlink, Tree

pytestmark = pytest.mark.any_user

MakeArea = Callable[[Tree], Area]

OLD = b"old content\n" * 1000
NEW = b"new content\n" * 1000


@contextmanager
def host_changes(here: Area) -> Iterator[Path]:
    """The host's side, to be changed in this block after the view was looked at."""
    look(here.view)
    yield here.lower
    here.host_changed()


def look(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            path = os.path.join(folder, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                Path(path).read_bytes()


def shows(path: Path, content: bytes) -> Callable[[], bool]:
    def check() -> bool:
        try:
            return path.read_bytes() == content
        except FileNotFoundError:
            return False

    return check


EDITS: dict[str, tuple[Callable[[Path], None], bytes]] = {
    "in place": (lambda path: overwrite(path, NEW), NEW),
    "appended": (lambda path: overwrite(path, OLD + NEW), OLD + NEW),
    "shortened": (lambda path: os.truncate(path, 100), OLD[:100]),
    "rewritten": (lambda path: (path.write_bytes(NEW), None)[1], NEW),
    "replaced": (lambda path: replace(path, NEW), NEW),
}


@pytest.mark.parametrize("how", EDITS)
def test_a_file_that_the_host_edits_shows_its_new_content(area: MakeArea, how: str) -> None:
    here = area({"file": OLD, "dir/file": OLD})
    edit, content = EDITS[how]
    with host_changes(here) as host:
        edit(host / "file")
        edit(host / "dir/file")
    eventually(shows(here.view / "file", content), "the new content")
    eventually(shows(here.view / "dir/file", content), "the new content in a directory")
    assert (here.view / "file").stat().st_mtime_ns == (here.lower / "file").stat().st_mtime_ns
    assert not os.path.lexists(here.upper / "file")


def test_a_name_never_shows_the_file_that_took_over_the_inode_number_of_its_own(area: MakeArea) -> None:
    here = area({"one": b"one 0", "dir/two": b"two 0"})
    view, reused = here.view, 0
    with host_changes(here) as host:
        for turn in range(1, 30):
            look(view)
            number = (host / "one").stat().st_ino
            replace(host / "one", b"one %d" % turn)
            replace(host / "dir/two", b"two %d" % turn)
            reused += (host / "dir/two").stat().st_ino == number
            # The second name is looked up first: it has the number by which the kernel knows the first.
            assert (view / "dir/two").read_bytes().startswith(b"two")
            assert (view / "one").read_bytes().startswith(b"one")
            assert (view / "one").stat().st_ino != (view / "dir/two").stat().st_ino
            eventually(shows(view / "one", b"one %d" % turn), "the new content")
            eventually(shows(view / "dir/two", b"two %d" % turn), "the new content in a directory")
    if not reused:
        pytest.skip("the filesystem of the workspace gave no inode number away a second time")


def test_what_the_host_renamed_keeps_its_inode_number(area: MakeArea) -> None:
    here = area({"file": OLD, "dir/file": OLD})
    with host_changes(here) as host:
        numbers = [(here.view / name).stat().st_ino for name in ("file", "dir", "dir/file")]
        (host / "file").rename(host / "moved")
        (host / "dir").rename(host / "folder")
    eventually(shows(here.view / "moved", OLD), "the file under its new name")
    assert [(here.view / name).stat().st_ino for name in ("moved", "folder", "folder/file")] == numbers


def test_a_file_that_the_host_edits_and_gives_its_old_time_shows_its_new_content(area: MakeArea) -> None:
    here = area({"file": OLD})
    with host_changes(here) as host:
        before = (host / "file").stat()
        overwrite(host / "file", NEW)
        os.utime(host / "file", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert len(OLD) == len(NEW)
    eventually(shows(here.view / "file", NEW), "the new content")


@pytest.mark.parametrize("how", ["in place", "appended", "shortened", "rewritten"])
def test_an_open_descriptor_sees_what_the_host_edits_in_place(area: MakeArea, how: str) -> None:
    here = area({"file": OLD})
    edit, content = EDITS[how]
    fd = os.open(here.view / "file", os.O_RDONLY)
    assert os.pread(fd, len(OLD), 0) == OLD
    with host_changes(here) as host:
        edit(host / "file")
    eventually(lambda: os.pread(fd, 2 * len(OLD), 0) == content, "the new content")
    assert os.fstat(fd).st_size == len(content)
    os.close(fd)


def test_an_open_descriptor_keeps_the_file_that_the_host_replaces(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = os.open(here.view / "file", os.O_RDONLY)
    with host_changes(here) as host:
        replace(host / "file", NEW)
    eventually(shows(here.view / "file", NEW), "the new file under the name")
    assert os.pread(fd, len(OLD), 0) == OLD
    os.close(fd)


def test_an_open_descriptor_keeps_the_file_that_the_host_deletes(area: MakeArea) -> None:
    here = area({"file": OLD})
    fd = os.open(here.view / "file", os.O_RDONLY)
    with host_changes(here) as host:
        (host / "file").unlink()
    eventually(lambda: not (here.view / "file").exists(), "the name is gone")
    assert os.pread(fd, len(OLD), 0) == OLD
    os.close(fd)


def test_a_file_that_the_host_creates_appears(area: MakeArea) -> None:
    here = area({"dir/file": ""})
    assert not (here.view / "new").exists()
    assert not (here.view / "dir/new").exists()
    with host_changes(here) as host:
        (host / "new").write_bytes(NEW)
        (host / "dir/new").write_bytes(NEW)
    eventually(shows(here.view / "new", NEW), "the new file")
    eventually(shows(here.view / "dir/new", NEW), "the new file in a directory")
    assert sorted(os.listdir(here.view)) == ["dir", "new"]


def test_a_file_that_the_host_creates_appears_in_a_directory_that_the_sandbox_changed(area: MakeArea) -> None:
    here = area({"dir/file": ""})
    (here.view / "dir/ours").write_text("ours")
    assert not (here.view / "dir/new").exists()
    with host_changes(here) as host:
        (host / "dir/new").write_bytes(NEW)
    eventually(shows(here.view / "dir/new", NEW), "the new file")
    assert sorted(os.listdir(here.view / "dir")) == ["file", "new", "ours"]


def test_a_file_that_the_host_deletes_disappears(area: MakeArea) -> None:
    here = area({"file": "", "dir/file": "", "dir/other": ""})
    with host_changes(here) as host:
        (host / "file").unlink()
        (host / "dir/file").unlink()
    eventually(lambda: not (here.view / "file").exists(), "the name is gone")
    eventually(lambda: not (here.view / "dir/file").exists(), "the name is gone from a directory")
    assert os.listdir(here.view) == ["dir"]
    assert os.listdir(here.view / "dir") == ["other"]


def test_a_file_that_the_host_renames_is_found_under_its_new_name(area: MakeArea) -> None:
    here = area({"file": OLD, "dir/": ""})
    assert not (here.view / "dir/moved").exists()
    number = (here.view / "file").stat().st_ino
    with host_changes(here) as host:
        (host / "file").rename(host / "dir/moved")
    eventually(shows(here.view / "dir/moved", OLD), "the new name")
    eventually(lambda: not (here.view / "file").exists(), "the old name is gone")
    assert (here.view / "dir/moved").stat().st_ino == number
    (here.view / "dir/moved").write_bytes(NEW)
    assert (here.view / "dir/moved").read_bytes() == NEW


def test_a_directory_that_the_host_renames_is_found_with_all_that_is_in_it(area: MakeArea) -> None:
    here = area({"dir/file": OLD, "dir/deep/leaf": OLD, "other/": ""})
    with host_changes(here) as host:
        (host / "dir").rename(host / "other/moved")
    eventually(shows(here.view / "other/moved/deep/leaf", OLD), "the new place")
    eventually(lambda: not (here.view / "dir").exists(), "the old place is gone")
    (here.view / "other/moved/deep/leaf").write_bytes(NEW)
    assert (here.upper / "other/moved/deep/leaf").read_bytes() == NEW


def test_directories_that_the_host_swaps_show_each_others_content(area: MakeArea) -> None:
    here = area({"one/file": "one", "two/file": "two"})
    with host_changes(here) as host:
        (host / "one").rename(host / "between")
        (host / "two").rename(host / "one")
        (host / "between").rename(host / "two")
    eventually(shows(here.view / "one/file", b"two"), "the content of the other")
    eventually(shows(here.view / "two/file", b"one"), "the content of the other")


def test_a_directory_that_the_host_deletes_and_makes_again_shows_its_new_content(area: MakeArea) -> None:
    here = area({"dir/file": "old", "dir/sub/leaf": "old"})
    with host_changes(here) as host:
        for path in ("dir/file", "dir/sub/leaf"):
            (host / path).unlink()
        (host / "dir/sub").rmdir()
        (host / "dir").rmdir()
        (host / "dir").mkdir()
        (host / "dir/fresh").write_text("fresh")
    eventually(shows(here.view / "dir/fresh", b"fresh"), "the new content")
    assert os.listdir(here.view / "dir") == ["fresh"]


def test_attributes_that_the_host_changes_show(area: MakeArea) -> None:
    here = area({"file": OLD, "dir/": "", "link": Symlink("file")})
    with host_changes(here) as host:
        (host / "file").chmod(0o600)
        (host / "dir").chmod(0o700)
        os.utime(host / "file", ns=(LONG_AGO, LONG_AGO + 7))
        (host / "link").unlink()
        (host / "link").symlink_to("dir")
    eventually(lambda: (here.view / "file").stat().st_mode & 0o777 == 0o600, "the mode of a file")
    eventually(lambda: (here.view / "dir").stat().st_mode & 0o777 == 0o700, "the mode of a directory")
    eventually(lambda: (here.view / "file").stat().st_mtime_ns == LONG_AGO + 7, "the time")
    eventually(lambda: os.readlink(here.view / "link") == "dir", "where a link leads")


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("inside")


def become_file(path: Path) -> None:
    (path / "inside").unlink()
    path.rmdir()
    path.write_text("a file now")


def become_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("target")


def test_what_becomes_another_type_on_the_host_becomes_it_in_the_view(area: MakeArea) -> None:
    here = area({"file": OLD, "dir/inside": "", "other": OLD, "target": "target"})
    with host_changes(here) as host:
        become_directory(host / "file")
        become_file(host / "dir")
        become_link(host / "other")
    eventually(lambda: (here.view / "file/inside").exists(), "the file is a directory")
    eventually(shows(here.view / "dir", b"a file now"), "the directory is a file")
    eventually(shows(here.view / "other", b"target"), "the file is a symlink")
    (here.view / "file/inside").write_text("changed")
    (here.view / "dir").write_text("changed")
    assert (here.view / "file/inside").read_text() == (here.view / "dir").read_text() == "changed"


@pytest.mark.parametrize("becomes", ["a file", "nothing"])
def test_an_open_directory_bears_that_its_lower_becomes_another_type(area: MakeArea, becomes: str) -> None:
    here = area({"dir/inside": "", "steady": "steady"})
    fd = os.open(here.view / "dir", os.O_RDONLY | os.O_DIRECTORY)
    with DirStream(here.view / "dir") as stream:
        with host_changes(here) as host:
            (host / "dir/inside").unlink()
            (host / "dir").rmdir()
            if becomes == "a file":
                (host / "dir").write_text("a file now")
        eventually(lambda: b"inside" not in names_again(stream), "the name is not listed")
        with pytest.raises(FileNotFoundError):
            os.open("inside", os.O_RDWR, dir_fd=fd)
        eventually(lambda: not can_stat("inside", fd), "the name is gone")
    os.close(fd)
    is_so = Path.is_file if becomes == "a file" else (lambda path: not os.path.lexists(path))
    eventually(lambda: is_so(here.view / "dir"), f"the directory is {becomes}")
    assert (here.view / "steady").read_text() == "steady"


def names_again(stream: DirStream) -> set[bytes]:
    stream.rewind()
    return {entry.name for entry in stream.rest()}


def can_stat(name: str, directory: int) -> bool:
    try:
        os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return True


def test_what_is_made_in_an_open_directory_whose_lower_vanished_is_kept_or_refused(area: MakeArea) -> None:
    here = area({"dir/inside": ""})
    fd = os.open(here.view / "dir", os.O_RDONLY | os.O_DIRECTORY)
    with host_changes(here) as host:
        (host / "dir/inside").unlink()
        (host / "dir").rmdir()
    try:
        os.mkdir("new", dir_fd=fd)
    except FileNotFoundError:
        eventually(lambda: not (here.view / "dir").exists(), "the directory is gone")
    else:
        assert os.listdir(here.view / "dir") == ["new"]
    os.close(fd)


ATTEMPTS: dict[str, Callable[[Path], object]] = {
    "reading": lambda path: path.read_bytes(),
    "writing": lambda path: overwrite(path, b"x"),
    "truncating": lambda path: os.truncate(path, 3),
    "chmod": lambda path: path.chmod(0o600),
    "utime": lambda path: os.utime(path, ns=(0, 0)),
    "setting an attribute": lambda path: os.setxattr(path, "user.test", b"x"),
    "renaming": lambda path: path.rename(path.with_name("elsewhere")),
    "linking": lambda path: os.link(path, path.with_name("linked")),
    "unlinking": lambda path: path.unlink(),
}


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_using_a_file_that_has_just_vanished_says_that_it_is_not_there(area: MakeArea, attempt: str) -> None:
    here = area({"file": OLD, "steady": "steady"})
    with host_changes(here) as host:
        (here.view / "file").stat()
        (host / "file").unlink()
    with pytest.raises(FileNotFoundError):
        ATTEMPTS[attempt](here.view / "file")
    eventually(lambda: os.listdir(here.view) == ["steady"], "a listing without the name")
    assert not here.upper.exists() or os.listdir(here.upper) == []


@pytest.mark.parametrize("attempt", [name for name in ATTEMPTS if name not in ("renaming", "unlinking")])
def test_using_a_file_that_was_just_replaced_uses_the_new_one(area: MakeArea, attempt: str) -> None:
    here = area({"file": OLD})
    with host_changes(here) as host:
        (here.view / "file").stat()
        replace(host / "file", NEW)
    ATTEMPTS[attempt](here.view / "file")
    expected = {"writing": b"x" + NEW[1:], "truncating": NEW[:3]}.get(attempt, NEW)
    assert (here.view / "file").read_bytes() == expected


def test_entries_that_vanish_while_they_are_listed_are_left_out_and_the_rest_is_there(area: MakeArea) -> None:
    here = area({f"{number:04}": "" for number in range(1000)})
    with DirStream(here.view) as stream:
        for _ in range(10):
            stream.read()
        for number in range(0, 1000, 2):
            (here.lower / f"{number:04}").unlink()
        here.host_changed()
        listed = {entry.name for entry in stream.rest()}
    eventually(lambda: len(os.listdir(here.view)) == 500, "half of the names")
    # The first names had been delivered before.
    assert len(listed & {b"%04d" % number for number in range(1, 1000, 2)}) >= 490


def test_what_the_sandbox_changed_stays_whatever_the_host_does(area: MakeArea) -> None:
    here = area({"edited": OLD, "deleted": OLD, "again": OLD, "chmodded": OLD})
    for name in ("edited", "deleted", "again"):
        (here.view / name).write_bytes(b"ours")
    (here.view / "chmodded").chmod(0o600)
    (here.view / "again").unlink()
    with host_changes(here) as host:
        overwrite(host / "edited", NEW)
        (host / "deleted").unlink()
        replace(host / "again", NEW)
        overwrite(host / "chmodded", NEW)
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert (here.view / "edited").read_bytes() == b"ours"
        assert (here.view / "deleted").read_bytes() == b"ours"
        assert not (here.view / "again").exists()
        assert (here.view / "chmodded").read_bytes() == OLD
    assert sorted(os.listdir(here.view)) == ["chmodded", "deleted", "edited"]


KEEP_REPLACING = """
import os, sys
contents = [letter * 300_000 for letter in (b"a", b"b", b"c")]
print("begun")
for turn in range(10**9):
    with open("saving", "wb") as file:
        file.write(contents[turn % 3])
    os.replace("saving", "file")
"""


def read_despite_staleness(path: Path) -> bytes:
    # The kernel looks a name up once more when the file behind it was replaced, and only once.
    while True:
        try:
            return path.read_bytes()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise


def test_a_file_that_the_host_keeps_replacing_is_never_seen_torn(area: MakeArea) -> None:
    here = area({"file": b"a" * 300_000})
    with companion(KEEP_REPLACING, cwd=here.lower) as host:
        assert says(host) == "begun"
        begun = time.monotonic()
        seen: set[bytes] = set()
        # For two seconds; longer where so little is done in them that a content was missed.
        while (passed := time.monotonic() - begun) < 2 or (len(seen) < 3 and passed < PATIENCE):
            content = read_despite_staleness(here.view / "file")
            assert len(content) == 300_000
            assert len(set(content)) == 1, "parts of two files"
            seen.add(content[:1])
    here.host_changed()
    eventually(shows(here.view / "file", (here.lower / "file").read_bytes()), "the last content")
    assert seen == {b"a", b"b", b"c"}
