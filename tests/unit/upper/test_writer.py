"""Changes leave an upper and come back: each operation, done on the layers, seen in the view."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
from tests.support.claims import is_opaque, is_whiteout
from tests.support.edited import Bench, ordinary_user
from tests.support.tree import LONG_AGO, Directory, File, HardLink, Symlink, Tree

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
    b"odd\xff\nname": "odd",
}

MakeBench = Callable[[Tree], Bench]


@pytest.fixture(params=["device", "xattr"])
def make_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBench]:
    made: list[Bench] = []

    def make(tree: Tree) -> Bench:
        made.append(Bench(tmp_path, tree, devices=request.param == "device"))
        return made[-1]

    yield make
    for bench in made:
        bench.close()
        assert os.listdir(bench.view.work) == []


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench(TREE)


def mtime(path: Path) -> int:
    return path.lstat().st_mtime_ns


# Dropping


def test_a_dropped_file_shows_the_lower_one_and_is_kept(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    assert bench.edit(bench.drop("file", "1")) == [DONE]
    assert bench.view.read("file") == b"lower\n"
    assert (bench.kept / "1").read_bytes() == b"upper\n"
    assert not (bench.upper / "file").exists()


def test_dropping_leaves_the_times_of_the_directory(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    before = mtime(bench.upper / "dir")
    assert bench.edit(bench.drop("dir/one")) == [DONE]
    assert mtime(bench.upper / "dir") == before == LONG_AGO


def test_a_dropped_addition_is_gone(bench: Bench) -> None:
    bench.view.create("new", b"new")
    bench.view.symlink("nowhere", "new-link")
    bench.view.mkfifo("new-fifo")
    assert bench.edit(*(bench.drop(name) for name in ("new", "new-link", "new-fifo"))) == [DONE] * 3
    assert not {b"new", b"new-link", b"new-fifo"} & set(bench.view.names())
    assert stat.S_ISFIFO((bench.kept / "new-fifo").lstat().st_mode)


def test_a_dropped_whiteout_lets_the_lower_entry_show(bench: Bench) -> None:
    bench.view.unlink("file")
    bench.view.remove_tree("dir")
    drops = [RemoveEntry(b"file", WHITEOUT, b"1"), RemoveEntry(b"dir", WHITEOUT, b"2")]
    assert bench.edit(*drops) == [DONE, DONE]
    assert bench.view.read("file") == b"lower\n"
    assert bench.view.read("dir/sub/deep") == b"deep"
    assert os.listdir(bench.kept) == []
    assert bench.edit(*drops) == [DONE, DONE]


def test_what_changed_since_is_not_dropped(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    drop = bench.drop("file")
    bench.view.append("file", b"more")
    assert bench.edit(drop) == [refused("changed")]
    assert bench.view.read("file") == b"upper\nmore"
    assert os.listdir(bench.kept) == []


def test_what_only_changed_its_mode_since_is_not_dropped(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    drop = bench.drop("file")
    bench.view.chmod("file", 0o600)
    assert bench.edit(drop) == [refused("changed")]


def test_a_whiteout_in_place_of_a_file_is_a_change_and_the_other_way_round(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    bench.view.unlink("other")
    drop = bench.drop("file")
    bench.view.unlink("file")
    bench.view.create("other", b"again")
    drops = drop, RemoveEntry(b"other", WHITEOUT, b"2")
    assert bench.edit(*drops) == [refused("changed")] * 2


def test_what_the_upper_does_not_have_cannot_be_dropped(bench: Bench) -> None:
    expect = UpperIdentity.of(os.lstat(bench.lower / "file"))
    drops = [
        RemoveEntry(b"file", expect, b"1"),
        RemoveEntry(b"dir/one", expect, b"2"),
        RemoveEntry(b"file/x", expect, b"3"),
    ]
    assert bench.edit(*drops) == [refused("absent")] * 3


def test_a_directory_is_not_dropped(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    assert bench.edit(bench.drop("dir")) == [refused("Is a directory")]


def test_a_drop_never_replaces_what_is_kept(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    bench.view.write("other", b"upper too\n")
    drops = bench.drop("file", "same"), bench.drop("other", "same")
    assert bench.edit(*drops) == [DONE, refused("File exists")]
    assert bench.view.read("other") == b"upper too\n"
    assert (bench.kept / "same").read_bytes() == b"upper\n"


def test_a_drop_done_again_is_done_whatever_came_after(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    drop = bench.drop("file")
    assert bench.edit(drop, drop) == [DONE, DONE]
    bench.view.write("file", b"anew\n")
    assert bench.edit(drop) == [DONE]
    assert bench.view.read("file") == b"anew\n"


def test_a_drop_never_follows_a_symlink(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    drop = bench.drop("dir/one")
    bench.view.rename("dir", "moved")
    bench.view.symlink("moved", "dir")
    assert bench.edit(drop) == [refused("absent")]
    assert bench.view.read("moved/one") == b"upper"


def test_any_name_can_be_dropped(bench: Bench) -> None:
    name = b"odd\xff\nname"
    bench.view.write(name, b"upper")
    expect = UpperIdentity.of(os.lstat(os.path.join(os.fsencode(bench.upper), name)))
    assert bench.edit(RemoveEntry(name, expect, b"1")) == [DONE]
    assert bench.view.read(name) == b"odd"


def test_without_a_record_nothing_is_done(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    with pytest.raises(FileNotFoundError):
        bench.edit(bench.drop("file"), record=7)
    assert bench.view.read("file") == b"upper\n"


# Hard links


def test_a_dropped_file_of_several_lower_names_shows_the_lower_one_under_all(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    assert bench.view.read("harder") == b"upper\n"
    assert bench.edit(bench.drop("hard", "1")) == [DONE]
    assert bench.view.read("hard") == bench.view.read("harder") == b"shared\n"
    assert bench.view.lstat("hard").st_ino == bench.view.lstat("harder").st_ino
    assert os.listdir(bench.index) == []


def test_all_upper_names_of_a_file_are_dropped_one_by_one(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    bench.view.rename("harder", "moved")
    bench.view.link("hard", "third")
    drops = [bench.drop(name) for name in ("hard", "moved", "third")]
    ino = bench.view.lstat("hard").st_ino
    for number, drop in enumerate(drops):
        assert bench.edit(drop) == [DONE]
        assert bench.edit(drop) == [DONE]
        if number < 2:
            assert bench.view.read("third") == bench.view.read("hard") == b"upper\n"
            assert bench.view.lstat("third").st_ino == ino
    assert bench.view.read("hard") == b"shared\n"
    assert bench.edit(RemoveEntry(b"harder", WHITEOUT, b"x")) == [DONE]
    assert bench.view.read("harder") == b"shared\n"
    assert [name for name in os.listdir(bench.index) if name.startswith("h")] == []


def test_names_that_another_record_kept_are_no_names_of_the_upper(bench: Bench) -> None:
    (bench.commits / "2" / "upper").mkdir(parents=True)
    bench.view.write("hard", b"upper\n")
    bench.view.link("hard", "third")
    assert bench.edit(bench.drop("third")) == [DONE]
    assert bench.edit(bench.drop("hard"), record=2) == [DONE]
    assert bench.view.read("hard") == bench.view.read("harder") == b"shared\n"


def test_an_indexed_file_without_a_name_in_the_upper_is_dropped_by_its_number(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    bench.view.unlink("hard")
    number = bench.view.lstat("harder").st_ino
    expect = UpperIdentity.of((bench.index / f"h{number:x}").lstat())
    assert bench.edit(RemoveEntry(b"harder", expect, b"1", number)) == [DONE]
    assert bench.view.read("harder") == b"shared\n"
    assert (bench.kept / "1").read_bytes() == b"upper\n"
    assert not bench.view.exists("hard")


def test_a_dropped_whiteout_of_a_hard_link_counts_the_name_again(bench: Bench) -> None:
    number = bench.view.lstat("hard").st_ino
    bench.view.unlink("hard")
    assert bench.view.lstat("harder").st_nlink == 1
    assert bench.edit(RemoveEntry(b"hard", WHITEOUT, b"1", number)) == [DONE]
    assert bench.view.lstat("harder").st_nlink == bench.view.lstat("hard").st_nlink == 2
    assert os.listdir(bench.index) == []
    assert bench.edit(Whiteout(b"hard", number)) == [DONE]
    assert bench.view.lstat("harder").st_nlink == 1


def test_a_dropped_whiteout_of_an_indexed_file_counts_the_name_again(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    number = bench.view.lstat("hard").st_ino
    bench.view.unlink("hard")
    assert bench.edit(RemoveEntry(b"hard", WHITEOUT, b"1", number)) == [DONE]
    assert bench.view.read("hard") == b"upper\n"
    assert bench.view.lstat("harder").st_nlink == 2
    assert bench.edit(Whiteout(b"hard", number)) == [DONE]
    assert bench.view.lstat("harder").st_nlink == 1


# Pruning


def test_an_upper_directory_without_entries_is_pruned(bench: Bench) -> None:
    bench.view.write("dir/sub/deep", b"upper")
    bench.view.chmod("dir/sub", 0o700)
    assert bench.edit(bench.drop("dir/sub/deep"), Prune(b"dir/sub", b"1")) == [DONE, DONE]
    assert bench.view.read("dir/sub/deep") == b"deep"
    assert stat.S_IMODE(bench.view.lstat("dir/sub").st_mode) == 0o755
    assert not (bench.upper / "dir/sub").exists()
    assert mtime(bench.upper / "dir") == LONG_AGO
    assert bench.edit(Prune(b"dir/sub", b"1"), Prune(b"dir", b"2"), Prune(b"dir", b"3")) == [
        DONE,
        DONE,
        refused("absent"),
    ]
    assert bench.view.lstat("dir").st_mtime_ns == LONG_AGO


def test_a_directory_with_entries_is_not_pruned(bench: Bench) -> None:
    bench.view.unlink("dir/one")
    assert bench.edit(Prune(b"dir", b"1"), Prune(b"file", b"2")) == [refused("busy"), refused("absent")]
    bench.view.write("file", b"upper")
    assert bench.edit(Prune(b"file", b"1")) == [refused("changed")]


def test_pruning_an_opaque_directory_shows_the_lower_one(bench: Bench) -> None:
    bench.view.remove_tree("dir")
    bench.view.mkdir("dir")
    assert bench.edit(Prune(b"dir", b"1")) == [DONE]
    assert sorted(bench.view.names("dir")) == [b"one", b"sub", b"two"]
    assert bench.edit(RestoreEntry(b"dir", b"1")) == [DONE]
    assert bench.view.names("dir") == []


# Opening and closing


def replaced_directory(bench: Bench) -> None:
    """A directory in place of the lower one, with an entry that is there too, and one that is not."""
    bench.view.remove_tree("dir")
    bench.view.mkdir("dir")
    bench.view.create("dir/one", b"upper one")
    bench.view.create("dir/new", b"new")
    bench.view.mkdir("dir/sub")
    bench.view.create("dir/sub/other", b"other")


def test_an_opened_directory_shows_the_same_and_lower_entries_where_something_is_dropped(
    bench: Bench,
) -> None:
    replaced_directory(bench)
    before = bench.observed().names
    times = mtime(bench.upper / "dir")
    opened = UnhideOutcome(opaque=True, redirect=None, whiteouts=(b"two",), closed=(b"sub",))
    assert bench.edit(Unhide(b"dir")) == [EditOutcome(done=True, opened=opened)]
    assert bench.observed().names == before
    assert mtime(bench.upper / "dir") == times
    assert not is_opaque(bench.upper / "dir")
    assert is_whiteout(bench.upper / "dir/two")
    assert is_opaque(bench.upper / "dir/sub")
    assert bench.edit(bench.drop("dir/one")) == [DONE]
    assert bench.view.read("dir/one") == b"1"


def test_a_directory_opened_again_tells_the_same(bench: Bench) -> None:
    replaced_directory(bench)
    first, again = bench.edit(Unhide(b"dir"), Unhide(b"dir"))
    assert first == again
    assert first.opened is not None
    assert first.opened.opaque


def test_a_closed_directory_is_what_it_was_before_it_was_opened(bench: Bench) -> None:
    replaced_directory(bench)
    before = bench.observed().names
    names = sorted(path.name for path in (bench.upper / "dir").iterdir())
    close = Rehide(b"dir", opaque=True, redirect=None, whiteouts=(b"two",), closed=(b"sub",))
    assert bench.edit(Unhide(b"dir"), close, close)[1:] == [DONE, DONE]
    assert bench.observed().names == before
    assert is_opaque(bench.upper / "dir")
    assert not is_opaque(bench.upper / "dir/sub")
    assert sorted(path.name for path in (bench.upper / "dir").iterdir()) == names
    assert os.listdir(bench.kept) == []


def test_a_directory_is_closed_as_the_record_noted_when_nothing_else_is_said(bench: Bench) -> None:
    replaced_directory(bench)
    before = bench.observed().names
    assert bench.edit(Unhide(b"dir"), Rehide(b"dir", opaque=True, redirect=None, whiteouts=None))[1] == DONE
    assert bench.observed().names == before
    assert not is_whiteout(bench.upper / "dir/two")


def test_a_plain_directory_is_open(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    outcomes = bench.edit(Unhide(b"dir"), Unhide(b"dir/one"), Unhide(b"dir/sub"))
    assert outcomes == [EditOutcome(done=True, opened=UnhideOutcome()), refused("changed"), refused("absent")]
    assert os.listdir(bench.kept) == []


def test_an_opened_redirect_shows_the_uppers_own_entries_only(bench: Bench) -> None:
    bench.view.rename("dir", "moved")
    bench.view.create("moved/new", b"new")
    outcome = bench.edit(Unhide(b"moved"))[0]
    assert outcome == EditOutcome(done=True, opened=UnhideOutcome(opaque=False, redirect=b"dir"))
    assert bench.view.names("moved") == [b"new"]
    close = Rehide(b"moved", opaque=False, redirect=b"dir", whiteouts=())
    assert bench.edit(close, close) == [DONE, DONE]
    assert sorted(bench.view.names("moved")) == [b"new", b"one", b"sub", b"two"]


def test_a_redirect_over_a_lower_directory_is_opened_and_closed(bench: Bench) -> None:
    (bench.lower / "moved").mkdir()
    (bench.lower / "moved/own").write_text("own")
    (bench.lower / "moved/two").write_text("not this")
    bench.view.remove_tree("moved")
    bench.view.rename("dir", "moved")
    bench.view.unlink("moved/one")
    before = bench.observed().names
    outcome = bench.edit(Unhide(b"moved"))[0]
    assert outcome.opened == UnhideOutcome(opaque=False, redirect=b"dir", whiteouts=(b"own", b"two"))
    assert bench.view.names("moved") == []
    assert bench.edit(Rehide(b"moved", False, b"dir", outcome.opened.whiteouts)) == [DONE]
    assert bench.observed().names == before


def test_a_directory_moved_away_and_back_is_opened_without_hiding_anything(bench: Bench) -> None:
    bench.view.rename("dir", "away")
    bench.view.unlink("away/two")
    bench.view.rename("away", "dir")
    before = bench.observed().names
    opened = UnhideOutcome(opaque=False, redirect=b"dir")
    assert bench.edit(Unhide(b"dir")) == [EditOutcome(done=True, opened=opened)]
    assert bench.observed().names == before
    assert "user.overlay.redirect" not in os.listxattr(bench.upper / "dir")
    assert bench.edit(Rehide(b"dir", False, b"dir", ())) == [DONE]
    assert bench.observed().names == before


# Putting back


def test_what_was_kept_comes_back(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    bench.view.create("new", b"new")
    before = bench.observed()
    drops = bench.drop("dir/one"), bench.drop("new"), Prune(b"dir", b"dir")
    assert bench.edit(*drops) == [DONE] * 3
    puts = RestoreEntry(b"dir", b"dir"), RestoreEntry(b"dir/one", b"dir-one"), RestoreEntry(b"new", b"new")
    assert bench.edit(*puts) == [DONE] * 3
    assert bench.observed() == before
    assert bench.edit(*puts) == [DONE] * 3
    assert os.listdir(bench.kept) == []


def test_a_put_makes_the_directories_on_the_way_as_they_are_below(bench: Bench) -> None:
    bench.view.write("dir/sub/deep", b"upper")
    before = bench.observed()
    drops = bench.drop("dir/sub/deep"), Prune(b"dir/sub", b"s"), Prune(b"dir", b"d")
    assert bench.edit(*drops, RestoreEntry(b"dir/sub/deep", b"dir-sub-deep")) == [DONE] * 4
    assert bench.observed() == before
    assert bench.entry("dir/sub") is not None


def test_nothing_is_put_where_the_view_has_no_directory(bench: Bench) -> None:
    (bench.kept / "1").write_text("kept")
    bench.view.remove_tree("dir")
    puts = (
        RestoreEntry(b"dir/one", b"1"),
        RestoreEntry(b"file/x", b"1"),
        RestoreEntry(b"nowhere/x", b"1"),
        Whiteout(b"dir/x"),
    )
    assert bench.edit(*puts) == [refused("absent")] * 4
    assert os.listdir(bench.kept) == ["1"]


def test_a_put_replaces_a_whiteout(bench: Bench) -> None:
    (bench.kept / "1").write_text("kept")
    (bench.kept / "2").mkdir()
    bench.view.unlink("file")
    bench.view.remove_tree("dir")
    assert bench.edit(RestoreEntry(b"file", b"1", WHITEOUT), RestoreEntry(b"dir", b"2")) == [DONE, DONE]
    assert bench.view.read("file") == b"kept"
    assert bench.view.is_dir("dir")
    assert os.listdir(bench.kept) == []


def test_a_put_replaces_what_is_expected_and_keeps_it(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    ino = bench.view.lstat("file").st_ino
    (bench.kept / "1").write_text("merged")
    put = RestoreEntry(b"file", b"1", bench.identity("file"))
    assert bench.edit(put, put) == [DONE, DONE]
    assert bench.view.read("file") == b"merged"
    assert bench.view.lstat("file").st_ino == ino
    assert (bench.kept / "1.old").read_bytes() == b"upper\n"


def test_a_put_replaces_nothing_else(bench: Bench) -> None:
    (bench.kept / "1").write_text("kept")
    bench.view.write("file", b"upper\n")
    expect = bench.identity("file")
    bench.view.append("file", b"more")
    puts = (
        RestoreEntry(b"file", b"1"),
        RestoreEntry(b"file", b"1", WHITEOUT),
        RestoreEntry(b"file", b"1", expect),
    )
    assert bench.edit(*puts) == [refused("changed")] * 3
    assert bench.edit(RestoreEntry(b"other", b"1", expect)) == [refused("changed")]
    assert bench.view.read("file") == b"upper\nmore"


def test_a_directory_with_entries_is_not_replaced(bench: Bench) -> None:
    (bench.kept / "1").write_text("kept")
    bench.view.write("dir/one", b"upper")
    assert bench.edit(RestoreEntry(b"dir", b"1", bench.identity("dir"))) == [refused("busy")]


def test_a_file_of_several_lower_names_comes_back_under_all(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    before = bench.observed()
    put = RestoreEntry(b"hard", b"hard")
    assert bench.edit(bench.drop("hard"), put, put) == [DONE] * 3
    assert bench.observed() == before


def test_a_file_comes_back_for_a_lower_file_that_has_another_number(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    drop = bench.drop("hard")
    bench.view.stop()
    os.unlink(bench.lower / "harder")
    os.rename(bench.lower / "other", bench.lower / "hard")
    os.link(bench.lower / "hard", bench.lower / "harder")
    bench.view.start()
    assert bench.edit(drop) == [DONE]
    number = bench.view.lstat("hard").st_ino
    assert bench.edit(RestoreEntry(b"hard", b"hard", number=number)) == [DONE]
    assert bench.view.read("hard") == bench.view.read("harder") == b"upper\n"


def test_a_put_replaces_a_file_of_several_lower_names_under_all(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    ino = bench.view.lstat("hard").st_ino
    (bench.kept / "1").write_text("merged")
    put = RestoreEntry(b"hard", b"1", bench.identity("hard"))
    assert bench.edit(put, put) == [DONE, DONE]
    assert bench.view.read("hard") == bench.view.read("harder") == b"merged"
    assert bench.view.lstat("hard").st_ino == bench.view.lstat("harder").st_ino == ino
    assert (bench.kept / "1.old").read_bytes() == b"upper\n"


def test_a_file_with_other_names_in_the_upper_is_not_replaced_under_one(bench: Bench) -> None:
    bench.view.write("hard", b"upper\n")
    bench.view.link("hard", "third")
    (bench.kept / "1").write_text("merged")
    assert bench.edit(RestoreEntry(b"hard", b"1", bench.identity("hard"))) == [refused("busy")]


# Whiteouts


def test_a_whiteout_hides_the_lower_entry_and_leaves_the_times(bench: Bench) -> None:
    whiteout = Whiteout(b"dir/one")
    assert bench.edit(whiteout, whiteout, Whiteout(b"dir/sub")) == [DONE] * 3
    assert bench.view.names("dir") == [b"two"]
    assert mtime(bench.upper / "dir") == LONG_AGO
    bench.view.create("dir/one", b"again")
    assert bench.edit(whiteout) == [refused("changed")]


# Moved directories


def moved_on_the_host(bench: Bench, old: str, new: str) -> None:
    bench.view.stop()
    os.rename(bench.lower / old, bench.lower / new)
    bench.start()


def test_a_directory_that_the_workspace_moved_too_needs_no_redirect(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    assert bench.edit(Rebase(b"dir/one", b"dir/one")) == [DONE]
    bench.view.rename("dir", "moved")
    bench.view.rename("moved/sub", "elsewhere")
    before = bench.observed().names
    moved_on_the_host(bench, "dir", "moved")
    assert bench.edit(FollowMove(b"dir", b"moved")) == [DONE]
    assert bench.observed().names == before
    assert "user.overlay.redirect" not in os.listxattr(bench.upper / "moved")
    assert os.getxattr(bench.upper / "elsewhere", "user.overlay.redirect") == b"/moved/sub"
    assert not is_whiteout(bench.upper / "dir")
    assert bench.edit(FollowMove(b"dir", b"moved")) == [DONE]
    moved = bench.entry("moved/one")
    assert moved is not None
    assert moved.ino == (bench.lower / "moved/one").stat().st_ino
    assert bench.entry("dir/one") is None


def test_a_directory_that_the_workspace_moved_back_is_redirected_again(bench: Bench) -> None:
    bench.view.write("dir/one", b"upper")
    bench.view.rename("dir", "moved")
    bench.view.rename("moved/sub", "elsewhere")
    before = bench.observed().names
    moved_on_the_host(bench, "dir", "moved")
    assert bench.edit(FollowMove(b"dir", b"moved")) == [DONE]
    moved_on_the_host(bench, "moved", "dir")
    assert bench.edit(UnfollowMove(b"dir", b"moved"), UnfollowMove(b"dir", b"moved")) == [DONE, DONE]
    assert bench.observed().names == before
    assert is_whiteout(bench.upper / "dir")
    assert os.listdir(bench.kept) == []


def test_a_directory_moved_below_its_own_old_name_is_followed(bench: Bench) -> None:
    bench.view.rename("dir", "away")
    bench.view.mkdir("dir")
    bench.view.rename("away", "dir/inner")
    bench.view.rename("dir/inner/sub", "elsewhere")
    before = bench.observed().names
    moved_on_the_host(bench, "dir", "away")
    (bench.lower / "dir").mkdir()
    moved_on_the_host(bench, "away", "dir/inner")
    outcomes = bench.edit(Unhide(b"dir"), FollowMove(b"dir", b"dir/inner"), FollowMove(b"dir", b"dir/inner"))
    assert [outcome.done for outcome in outcomes] == [True] * 3
    assert bench.observed().names.keys() == before.keys()
    assert os.getxattr(bench.upper / "elsewhere", "user.overlay.redirect") == b"/dir/inner/sub"


def test_a_directory_that_is_redirected_elsewhere_is_not_followed(bench: Bench) -> None:
    bench.view.rename("dir", "moved")
    bench.view.mkdir("dir")
    outcomes = bench.edit(
        FollowMove(b"other", b"moved"), FollowMove(b"other", b"dir"), FollowMove(b"dir", b"nowhere")
    )
    assert outcomes == [refused("changed"), refused("changed"), refused("absent")]


# The baseline


def test_a_rebased_entry_started_from_what_the_workspace_has_now(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    number = bench.view.lstat("file").st_ino
    (bench.lower / "file.new").write_text("committed\n")
    os.rename(bench.lower / "file.new", bench.lower / "file")
    assert bench.edit(Rebase(b"file", b"file"), Rebase(b"", b"")) == [DONE, DONE]
    entry = bench.entry("file")
    assert entry is not None
    assert entry.ino == (bench.lower / "file").stat().st_ino
    assert entry.number == number
    assert entry.saved is not None


def test_an_entry_rebased_on_nothing_started_from_nothing(bench: Bench) -> None:
    bench.view.write("file", b"upper\n")
    assert bench.edit(Rebase(b"file", b"file")) == [DONE]
    (bench.lower / "file").unlink()
    assert bench.edit(Rebase(b"file", b"file")) == [DONE]
    assert bench.entry("file") is None


# Permissions


def test_an_ordinary_user_edits_what_its_modes_forbid(tmp_path: Path) -> None:
    locked: Tree = {
        "ro/one": "1",
        "ro/two": "2",
        "ro/": Directory(mode=0o755),
        "none/one": "1",
        "none/": Directory(mode=0o755),
        "secret": File("lower", mode=0o600),
    }
    with ordinary_user(tmp_path) as place:
        bench = Bench(place, locked)
        try:
            view = bench.view
            view.write("ro/one", b"upper")
            view.unlink("ro/two")
            view.create("none/new", b"new")
            view.write("secret", b"upper")
            before = {name: view.read(name) for name in ("ro/one", "none/new", "secret")}
            view.chmod("ro", 0o555)
            view.chmod("none", 0o000)
            view.chmod("secret", 0o000)
            with_modes = [stat.S_IMODE(view.lstat(name).st_mode) for name in ("ro", "none", "secret")]
            os.chmod(bench.upper / "none", 0o700)
            none = bench.drop("none/new")
            os.chmod(bench.upper / "none", 0o000)
            secret = bench.drop("secret")
            # A look at it moves its change time.
            view.lstat("secret")
            drops = [bench.drop("ro/one"), RemoveEntry(b"ro/two", WHITEOUT, b"2"), none, secret]
            prunes = Prune(b"ro", b"ro"), Prune(b"none", b"none")
            assert bench.edit(*drops, *prunes) == [DONE] * 6
            assert view.read("ro/one") == b"1"
            assert view.read("secret") == b"lower"
            assert sorted(view.names("none")) == [b"one"]
            puts = (
                RestoreEntry(b"ro", b"ro"),
                RestoreEntry(b"none", b"none"),
                RestoreEntry(b"ro/one", b"ro-one"),
            )
            more = (
                RestoreEntry(b"none/new", b"none-new"),
                RestoreEntry(b"secret", b"secret"),
                Whiteout(b"ro/two"),
            )
            assert bench.edit(*puts, *more) == [DONE] * 6
            found = [stat.S_IMODE(view.lstat(name).st_mode) for name in ("ro", "none", "secret")]
            assert found == with_modes
            for name in ("none", "secret"):
                view.chmod(name, 0o700)
            assert {name: view.read(name) for name in before} == before
            assert view.names("ro") == [b"one"]
        finally:
            bench.close()
