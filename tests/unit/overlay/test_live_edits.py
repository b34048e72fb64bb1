"""An upper is edited while the view is in use: what the kernel remembers goes on being right."""

import errno
import gc
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandboxfs.overlay.filesystem import ROOT_INODE
from sandboxfs.upper.edits import (
    WHITEOUT,
    EditOutcome,
    FollowMove,
    Prune,
    Rebase,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    UnfollowMove,
    Unhide,
    UnhideOutcome,
    UpperIdentity,
    Whiteout,
    refused,
)
from tests.support.claims import fails_with, is_whiteout
from tests.support.edited import LiveBench, ordinary_user
from tests.support.tree import Directory, File, HardLink, Symlink, Tree

DONE = EditOutcome(done=True)
TREE: Tree = {
    "file": "lower\n",
    "other": "other\n",
    "link": Symlink("file"),
    "dir/one": "1",
    "dir/two": "2",
    "dir/sub/deep": "deep",
    "hard": "shared\n",
    "harder": HardLink("hard"),
}
MakeBench = Callable[[Tree], LiveBench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    made: list[LiveBench] = []

    def make(tree: Tree) -> LiveBench:
        made.append(LiveBench(tmp_path, tree))
        return made[-1]

    try:
        yield make
        for bench in made:
            bench.stop()
            assert os.listdir(bench.work) == []
    finally:
        for bench in made:
            bench.abandon()


@pytest.fixture
def bench(make_bench: MakeBench) -> LiveBench:
    return make_bench(TREE)


def commit(bench: LiveBench, *paths: str) -> None:
    """Do to the workspace what a commit does: a new file in place of the old one, with the view's content."""
    for path in paths:
        target = bench.lower / path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(".staged")
        staged.write_bytes((bench.upper / path).read_bytes())
        staged.rename(target)


def ino_of(bench: LiveBench, path: str) -> int:
    return bench.lstat(path).st_ino


def attributes(bench: LiveBench, ino: int) -> os.stat_result:
    """What the kernel is told of an inode it knows."""
    return bench.fs.getattr(ino).stat


def opened_content(bench: LiveBench, ino: int) -> bytes:
    with bench.open_inode(ino, os.O_RDONLY) as file:
        return file.pread(1 << 20, 0)


# Numbers


def test_a_dropped_file_keeps_its_number_and_shows_the_lower_content(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    ino = ino_of(bench, "file")
    assert bench.edit(bench.drop("file")) == [DONE]
    assert ino_of(bench, "file") == ino
    assert opened_content(bench, ino) == b"lower\n"
    assert ino in bench.outdated.inodes
    assert (ROOT_INODE, b"file") in bench.outdated.expired


def test_whatever_was_listed_is_to_be_listed_again(make_bench: MakeBench) -> None:
    bench = make_bench({"file": "lower", "dir/one": "1", "other/two": "2"})
    bench.write("file", b"upper\n")
    bench.names("dir")
    numbers = {name: ino_of(bench, name) for name in ("dir", "other")}
    assert bench.edit(bench.drop("file")) == [DONE]
    assert numbers["dir"] in bench.outdated.inodes
    assert numbers["other"] not in bench.outdated.inodes, "nobody listed it"


def test_a_committed_file_keeps_its_number_until_it_is_forgotten(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    bench.create("new", b"new")
    numbers = [ino_of(bench, name) for name in ("file", "new")]
    commit(bench, "file", "new")
    assert bench.edit(bench.drop("file"), bench.drop("new")) == [DONE, DONE]
    assert [ino_of(bench, name) for name in ("file", "new")] == numbers
    assert [opened_content(bench, ino) for ino in numbers] == [b"upper\n", b"new"]
    bench.forget()
    hosts = [(bench.lower / name).stat().st_ino for name in ("file", "new")]
    assert [ino_of(bench, name) for name in ("file", "new")] == hosts


def test_a_committed_file_that_is_changed_again_keeps_its_number(bench: LiveBench) -> None:
    bench.create("new", b"new")
    ino = ino_of(bench, "new")
    for turn in range(3):
        commit(bench, "new")
        assert bench.edit(bench.drop("new", f"new-{turn}")) == [DONE]
        bench.append("new", b"more")
        assert ino_of(bench, "new") == ino
    assert bench.read("new") == b"new" + b"more" * 3
    # On disk it goes by the number that the workspace's file has.
    bench.remount()
    assert ino_of(bench, "new") == (bench.lower / "new").stat().st_ino
    assert bench.read("new") == b"new" + b"more" * 3


def test_a_number_that_was_taken_over_is_not_given_to_another_object(bench: LiveBench) -> None:
    bench.create("new", b"new")
    ino = ino_of(bench, "new")
    commit(bench, "new")
    assert bench.edit(bench.drop("new")) == [DONE]
    # The very object whose number that was comes back, at another place.
    assert bench.edit(RestoreEntry(b"again", b"new")) == [DONE]
    assert ino_of(bench, "new") == ino
    assert ino_of(bench, "again") != ino
    assert bench.read("again") == b"new"


def test_a_committed_directory_keeps_its_number_and_those_who_work_in_it(bench: LiveBench) -> None:
    bench.mkdir("made")
    bench.create("made/new", b"new")
    made, new = ino_of(bench, "made"), ino_of(bench, "made/new")
    commit(bench, "made/new")
    with bench.open_dir("made") as listing:
        outcomes = bench.edit(Unhide(b"made"), bench.drop("made/new"), Prune(b"made", b"made"))
        assert [outcome.done for outcome in outcomes] == [True] * 3
        assert [name for name, _ in listing.read()] == [b".", b"..", b"new"]
    entry = bench.fs.lookup(made, b"new")
    assert entry is not None
    bench.references[entry.ino] += 1
    assert entry.ino == new
    assert ino_of(bench, "made") == made
    assert not (bench.upper / "made").exists()
    bench.create("made/more", b"more")
    assert (bench.upper / "made/more").exists()
    assert ino_of(bench, "made") == made
    bench.remount()
    assert sorted(bench.names("made")) == [b"more", b"new"]
    assert ino_of(bench, "made") == (bench.lower / "made").stat().st_ino


# Open files


def test_an_open_file_reads_what_shows_after_a_drop(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    with bench.open("file", os.O_RDONLY) as reader:
        assert bench.edit(bench.drop("file")) == [DONE]
        assert reader.pread(100, 0) == b"lower\n"
        assert reader.stat().st_size == 6
        bench.write("file", b"upper again\n")
        assert reader.pread(100, 0) == b"upper again\n"


def test_an_open_file_is_written_to_a_new_copy_after_a_drop(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    with bench.open("file", os.O_RDWR) as writer, bench.open("file", os.O_RDONLY) as reader:
        assert bench.edit(bench.drop("file")) == [DONE]
        assert writer.pwrite(b"U", 0) == 1
        assert writer.pread(100, 0) == reader.pread(100, 0) == b"Uower\n"
        writer.truncate(3)
        assert reader.pread(100, 0) == b"Uow"
    assert bench.read("file") == b"Uow"
    assert (bench.kept / "file").read_bytes() == b"upper\n"
    assert (bench.lower / "file").read_bytes() == b"lower\n"


def test_a_program_that_appends_loses_nothing_while_its_file_is_committed(bench: LiveBench) -> None:
    bench.create("log", b"")
    with bench.open("log", os.O_RDWR | os.O_APPEND) as log:
        ino = log.stat().st_ino
        for turn in range(20):
            log.append(b"%d\n" % turn)
            if turn % 3 == 0:
                commit(bench, "log")
                assert bench.edit(bench.drop("log", f"log-{turn}")) == [DONE]
            assert log.stat().st_ino == ino_of(bench, "log") == ino
    assert bench.read("log") == b"".join(b"%d\n" % turn for turn in range(20))


def test_a_file_that_is_gone_stays_with_those_who_have_it_open(bench: LiveBench) -> None:
    bench.create("new", b"new")
    with bench.open("new", os.O_RDWR) as file:
        ino = file.stat().st_ino
        assert bench.edit(bench.drop("new")) == [DONE]
        assert not bench.exists("new")
        assert (ROOT_INODE, b"new") in bench.outdated.removed
        assert file.stat().st_nlink == 0
        file.append(b" and more")
        assert file.pread(100, 0) == b"new and more"
        bench.create("new", b"another")
        assert ino_of(bench, "new") != ino
    assert bench.read("new") == b"another"


def test_a_file_that_comes_back_is_the_one_that_is_still_open(bench: LiveBench) -> None:
    bench.create("new", b"new")
    with bench.open("new", os.O_RDWR) as file:
        ino = file.stat().st_ino
        assert bench.edit(bench.drop("new")) == [DONE]
        file.append(b" and more")
        assert bench.edit(RestoreEntry(b"new", b"new")) == [DONE]
        assert ino_of(bench, "new") == ino
        assert bench.read("new") == b"new and more"
        file.append(b" still")
        assert file.stat().st_nlink == 1
    assert bench.read("new") == b"new and more still"


def test_an_open_file_reads_what_is_put_in_its_place(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    (bench.kept / "1").write_text("merged\n")
    with bench.open("file", os.O_RDWR) as file:
        ino = file.stat().st_ino
        assert bench.edit(RestoreEntry(b"file", b"1", bench.identity("file"))) == [DONE]
        assert file.pread(100, 0) == b"merged\n"
        file.append(b"more\n")
        assert ino_of(bench, "file") == ino
    assert bench.read("file") == b"merged\nmore\n"
    assert (bench.kept / "1.old").read_bytes() == b"upper\n"


def test_an_open_file_reads_what_comes_back(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    with bench.open("file", os.O_RDONLY) as file:
        assert bench.edit(bench.drop("file"), RestoreEntry(b"file", b"file")) == [DONE, DONE]
        assert file.pread(100, 0) == b"upper\n"
        assert file.stat().st_ino == ino_of(bench, "file")


def test_what_shows_as_another_type_is_another_inode(bench: LiveBench) -> None:
    bench.unlink("file")
    bench.mkdir("file")
    bench.unlink("link")
    bench.create("link", b"a file now")
    directory, file = ino_of(bench, "file"), ino_of(bench, "link")
    with bench.open("link", os.O_RDONLY) as opened:
        assert bench.edit(Prune(b"file", b"1"), bench.drop("link")) == [DONE, DONE]
        assert opened.pread(100, 0) == b"a file now"
    assert bench.read("file") == b"lower\n"
    assert bench.readlink("link") == b"file"
    assert stat.S_ISDIR(attributes(bench, directory).st_mode)
    assert stat.S_ISREG(attributes(bench, file).st_mode)
    assert {(ROOT_INODE, b"file"), (ROOT_INODE, b"link")} <= bench.outdated.removed


# Names


def test_a_dropped_whiteout_lets_the_name_show(bench: LiveBench) -> None:
    bench.unlink("file")
    assert not bench.exists("file")
    assert bench.edit(RemoveEntry(b"file", WHITEOUT, b"1")) == [DONE]
    assert bench.read("file") == b"lower\n"
    assert (ROOT_INODE, b"file") in bench.outdated.expired


def test_a_whiteout_takes_the_name_away(bench: LiveBench) -> None:
    ino = ino_of(bench, "dir/one")
    with bench.open("dir/one", os.O_RDONLY) as file:
        assert bench.edit(Whiteout(b"dir/one")) == [DONE]
        assert not bench.exists("dir/one")
        assert file.pread(10, 0) == b"1"
    assert bench.fs.getattr(ino).nlink == 0
    # The directory on the way has been copied up.
    bench.create("dir/three", b"3")
    assert sorted(bench.names("dir")) == [b"sub", b"three", b"two"]


def test_names_found_absent_in_a_directory_of_the_sandbox_are_asked_for_again(bench: LiveBench) -> None:
    bench.mkdir("made")
    made = ino_of(bench, "made")
    assert not bench.exists("made/later")
    assert bench.fs.absence_lasts(made)
    (bench.lower / "made").mkdir()
    assert bench.edit(Unhide(b"made"))[0].done
    assert (made, b"later") in bench.outdated.expired
    assert not bench.fs.absence_lasts(made)
    (bench.lower / "made/later").write_text("later")
    assert bench.read("made/later") == b"later"


def test_a_pruned_opaque_directory_shows_what_is_below(bench: LiveBench) -> None:
    bench.remove_tree("dir")
    bench.mkdir("dir")
    directory = ino_of(bench, "dir")
    assert not bench.exists("dir/one")
    assert bench.edit(Prune(b"dir", b"1")) == [DONE]
    assert (directory, b"one") in bench.outdated.expired
    assert ino_of(bench, "dir") == directory
    assert bench.read("dir/one") == b"1"
    assert bench.read("dir/sub/deep") == b"deep"


def test_what_nobody_knows_is_edited_all_the_same(bench: LiveBench) -> None:
    bench.write("dir/sub/deep", b"upper")
    bench.forget()
    assert bench.edit(bench.drop("dir/sub/deep"), Prune(b"dir/sub", b"1")) == [DONE, DONE]
    assert bench.read("dir/sub/deep") == b"deep"


def test_what_is_refused_changes_nothing(bench: LiveBench) -> None:
    bench.write("file", b"upper\n")
    drop = bench.drop("file")
    with bench.open("file", os.O_RDWR) as file:
        file.append(b"more\n")
        assert bench.edit(drop) == [refused("changed")]
        file.append(b"still\n")
    assert bench.read("file") == b"upper\nmore\nstill\n"
    assert bench.edit(RemoveEntry(b"nowhere/x", drop.expect, b"1"), Prune(b"", b"2"))[0] == refused("absent")


# Hard links


def test_all_names_of_a_lower_file_show_it_after_a_drop(bench: LiveBench) -> None:
    bench.write("hard", b"upper\n")
    ino = ino_of(bench, "hard")
    assert ino_of(bench, "harder") == ino
    with bench.open("harder", os.O_RDWR) as file:
        assert bench.edit(bench.drop("hard")) == [DONE]
        assert file.pread(100, 0) == bench.read("hard") == bench.read("harder") == b"shared\n"
        assert ino_of(bench, "hard") == ino_of(bench, "harder") == ino
        file.pwrite(b"SH", 0)
        assert bench.read("hard") == bench.read("harder") == b"SHared\n"
    assert bench.lstat("hard").st_nlink == 2
    bench.remount()
    assert bench.read("hard") == bench.read("harder") == b"SHared\n"
    assert ino_of(bench, "hard") == ino_of(bench, "harder")


def test_a_committed_file_of_several_names_is_one_file_to_programs_ever_after(bench: LiveBench) -> None:
    bench.write("hard", b"upper\n")
    ino = ino_of(bench, "harder")
    commit(bench, "hard")
    (bench.lower / "harder").unlink()
    os.link(bench.lower / "hard", bench.lower / "harder")
    assert bench.edit(bench.drop("hard")) == [DONE]
    assert ino_of(bench, "hard") == ino_of(bench, "harder") == ino
    bench.append("harder", b"more\n")
    assert bench.read("hard") == b"upper\nmore\n"
    bench.forget()
    assert bench.read("hard") == bench.read("harder") == b"upper\nmore\n"
    assert ino_of(bench, "hard") == ino_of(bench, "harder")


def test_links_made_in_the_sandbox_are_dropped_one_by_one(bench: LiveBench) -> None:
    bench.create("a", b"both\n")
    bench.link("a", "b")
    ino = ino_of(bench, "b")
    with bench.open("a", os.O_RDWR) as file:
        assert bench.edit(bench.drop("a")) == [DONE]
        assert not bench.exists("a")
        assert ino_of(bench, "b") == ino
        file.append(b"more\n")
        assert bench.read("b") == b"both\nmore\n"
        assert bench.edit(bench.drop("b")) == [DONE]
        assert file.stat().st_nlink == 0
    assert not bench.exists("b")


# Directories that move


def test_a_directory_that_the_workspace_moved_too_goes_on(bench: LiveBench) -> None:
    bench.rename("dir", "moved")
    bench.create("moved/new", b"new")
    numbers = {path: ino_of(bench, path) for path in ("moved", "moved/one", "moved/sub", "moved/sub/deep")}
    with bench.open_dir("moved/sub") as listing, bench.open("moved/sub/deep", os.O_RDWR) as file:
        os.rename(bench.lower / "dir", bench.lower / "moved")
        assert bench.edit(FollowMove(b"dir", b"moved")) == [DONE]
        assert [name for name, _ in listing.read()] == [b".", b"..", b"deep"]
        file.append(b"er")
    assert {path: ino_of(bench, path) for path in numbers} == numbers
    assert bench.read("moved/sub/deep") == b"deeper"
    assert (bench.upper / "moved/sub/deep").read_bytes() == b"deeper"
    assert sorted(bench.names("moved")) == [b"new", b"one", b"sub", b"two"]
    # Held directories are let go of when many others are used; then the new path counts.
    bench.fs._merge.fds.close()
    assert bench.read("moved/one") == b"1"
    assert bench.observed_anew()
    os.rename(bench.lower / "moved", bench.lower / "dir")
    assert bench.edit(UnfollowMove(b"dir", b"moved")) == [DONE]
    bench.fs._merge.fds.close()
    assert {path: ino_of(bench, path) for path in numbers} == numbers
    assert is_whiteout(bench.upper / "dir")
    assert bench.observed_anew()


def test_a_directory_that_the_workspace_moved_too_is_whole_before_the_upper_follows(
    bench: LiveBench,
) -> None:
    bench.rename("dir", "away")
    bench.mkdir("dir")
    bench.rename("away", "dir/inner")
    bench.create("dir/inner/new", b"new")
    numbers = {path: ino_of(bench, path) for path in ("dir/inner", "dir/inner/one", "dir/inner/sub/deep")}
    (bench.lower / "dir").rename(bench.lower / "away")
    (bench.lower / "dir").mkdir()
    (bench.lower / "away").rename(bench.lower / "dir/inner")
    assert bench.edit(Unhide(b"dir"))[0].done
    # Whatever the daemon held open, it has closed by now.
    bench.fs._merge.fds.close()
    assert sorted(bench.names("dir/inner")) == [b"new", b"one", b"sub", b"two"]
    assert bench.edit(FollowMove(b"dir", b"dir/inner")) == [DONE]
    bench.fs._merge.fds.close()
    assert {path: ino_of(bench, path) for path in numbers} == numbers
    assert bench.read("dir/inner/sub/deep") == b"deep"
    assert bench.observed_anew()


def test_a_directory_that_took_the_place_of_a_moved_one_is_not_taken_for_it(bench: LiveBench) -> None:
    bench.rename("dir", "moved")
    (bench.lower / "dir").rename(bench.lower / "elsewhere")
    (bench.lower / "moved").mkdir()
    (bench.lower / "moved/foreign").touch()
    bench.forget()
    assert bench.names("moved") == []


def test_an_opened_redirect_loses_what_it_led_to_and_gets_it_back(bench: LiveBench) -> None:
    bench.rename("dir", "moved")
    bench.create("moved/new", b"new")
    deep = ino_of(bench, "moved/sub/deep")
    with bench.open("moved/sub/deep", os.O_RDONLY) as file:
        opened = UnhideOutcome(opaque=False, redirect=b"dir")
        assert bench.edit(Unhide(b"moved")) == [EditOutcome(done=True, opened=opened)]
        assert bench.names("moved") == [b"new"]
        assert file.pread(10, 0) == b"deep"
        assert bench.fs.getattr(deep).nlink == 0
        assert bench.observed_anew()
        assert bench.edit(Rehide(b"moved", False, b"dir", ())) == [DONE]
        assert sorted(bench.names("moved")) == [b"new", b"one", b"sub", b"two"]
        assert bench.read("moved/sub/deep") == b"deep"
    assert bench.observed_anew()


# Limits


def test_a_mount_of_sandboxfs_in_the_workspace_is_never_looked_at(tmp_path: Path) -> None:
    (tmp_path / "workspace" / "mnt").mkdir(parents=True)
    bench = LiveBench(tmp_path, {"file": "lower"})
    try:
        bench.fs.close()
        bench.sealed = [bench.lower / "mnt"]
        os.umask(bench._umask)
        bench.start()
        (bench.kept / "1").write_text("kept")
        why = "a mount of sandboxfs is in the way"
        operations = (
            Rebase(b"mnt", b"mnt"),
            Rebase(b"mnt/x", b"mnt/x"),
            RestoreEntry(b"mnt/x", b"1"),
            Whiteout(b"mnt/x"),
        )
        assert bench.edit(*operations) == [refused(why)] * 4
    finally:
        bench.abandon()


def test_no_descriptor_is_left_open(bench: LiveBench) -> None:
    def descriptors() -> int:
        bench.fs._merge.fds.close()
        return len(os.listdir("/proc/self/fd"))

    # What other tests left to the collector must not be closed in between.
    gc.collect()
    bench.write("dir/sub/deep", b"upper")
    before = descriptors()
    for turn in range(3):
        drop = bench.drop("dir/sub/deep", f"deep-{turn}")
        operations = (
            drop,
            Prune(b"dir/sub", b"sub-%d" % turn),
            RestoreEntry(b"dir/sub/deep", b"deep-%d" % turn),
        )
        with bench.open("dir/sub/deep", os.O_RDONLY):
            assert bench.edit(*operations) == [DONE] * 3
    assert descriptors() == before


def test_an_ordinary_user_edits_what_its_modes_forbid(tmp_path: Path) -> None:
    locked: Tree = {"ro/one": "1", "none/one": "1", "none/": Directory(), "secret": File("lower", mode=0o600)}
    with ordinary_user(tmp_path) as place:
        bench = LiveBench(place, locked)
        try:
            bench.write("ro/one", b"upper")
            bench.create("none/new", b"new")
            bench.write("secret", b"upper")
            new, secret = bench.drop("none/new"), ino_of(bench, "secret")
            bench.chmod("ro", 0o555)
            bench.chmod("none", 0o000)
            with bench.open("secret", os.O_RDWR) as file:
                bench.chmod("secret", 0o000)
                operations = bench.drop("ro/one"), new, bench.drop("secret"), Prune(b"ro", b"1")
                assert bench.edit(*operations, Prune(b"none", b"2")) == [DONE] * 5
                assert file.pread(10, 0) == b"lower"
                assert bench.edit(RestoreEntry(b"secret", b"secret")) == [DONE]
                assert file.pread(10, 0) == b"upper"
                file.append(b"!")
            assert stat.S_IMODE(attributes(bench, secret).st_mode) == 0
            assert bench.read("ro/one") == b"1"
            assert bench.names("none") == [b"one"]
            bench.chmod("secret", 0o600)
            assert bench.read("secret") == b"upper!"
        finally:
            bench.abandon()


def test_a_file_that_its_user_could_not_go_on_with_stays(tmp_path: Path) -> None:
    with ordinary_user(tmp_path) as place:
        bench = LiveBench(place, {"file": "lower"})
        try:
            with bench.open("file", os.O_RDWR) as file:
                file.pwrite(b"upper", 0)
                # Nobody but root could read it now.
                (bench.lower / "file").chmod(0o000)
                assert bench.edit(bench.drop("file")) == [refused("Permission denied")]
                assert file.pread(10, 0) == b"upper"
                file.append(b"!")
                (bench.lower / "file").chmod(0o644)
            assert bench.read("file") == b"upper!"
            assert os.listdir(bench.kept) == []
        finally:
            bench.abandon()


def test_a_name_that_the_host_took_away_meanwhile_is_no_harm(bench: LiveBench) -> None:
    bench.write("dir/one", b"upper")
    ino = ino_of(bench, "dir/one")
    drop = bench.drop("dir/one")
    (bench.lower / "dir/one").unlink()
    assert bench.edit(drop) == [DONE]
    assert bench.fs.getattr(ino).nlink == 0
    with fails_with(errno.ENOENT):
        bench.read("dir/one")
    assert UpperIdentity.of((bench.kept / "dir-one").lstat()).ino
