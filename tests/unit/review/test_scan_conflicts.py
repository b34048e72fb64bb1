"""What a scan says when the host has changed the workspace meanwhile."""

import os
import shutil

from sandboxfs.review import change
from sandboxfs.review.scan import scan
from tests.support.tree import HardLink, Symlink
from tests.unit.conftest import Review


def test_an_edit_of_another_file_is_no_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "b").write_text("host\n")
    (sandbox.host / "c").write_text("host\n")
    assert sandbox.found() == ["modified a"]


def test_touched_times_are_no_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": "old\n"})
    sandbox.write("a", b"changed\n")
    sandbox.unlink("b")
    os.utime(sandbox.host / "a")
    os.utime(sandbox.host / "b")
    assert sandbox.found() == ["modified a", "deleted b"]


def test_a_file_written_again_with_the_same_bytes_is_no_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    replaced = sandbox.host / "a.new"
    replaced.write_text("old\n")
    replaced.chmod(0o644)
    replaced.rename(sandbox.host / "a")
    assert sandbox.found() == ["modified a"]


def test_a_file_that_both_changed_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "a").write_text("host!\n")
    assert sandbox.found() == ["modified a!"]
    assert sandbox.conflicts() == {"a": change.CHANGED}


def test_the_sides_of_a_conflict_are_the_baseline_the_sandbox_and_the_workspace(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "a").write_text("host\n")
    with sandbox.layers() as layers:
        (finding,) = scan(layers)
        assert finding.old is not None
        assert finding.new is not None
        assert finding.lower is not None
        contents = finding.old.read(), finding.new.read(), finding.lower.read()
    assert contents == (b"old\n", b"changed\n", b"host\n")


def test_the_same_change_on_both_sides_is_no_change(review: Review) -> None:
    sandbox = review({"a": "old\n", "m": "1", "link": Symlink("a")})
    sandbox.write("a", b"changed\n")
    sandbox.chmod("m", 0o600)
    sandbox.unlink("link")
    sandbox.symlink("b", "link")
    (sandbox.host / "a").write_text("changed\n")
    (sandbox.host / "m").chmod(0o600)
    (sandbox.host / "link").unlink()
    (sandbox.host / "link").symlink_to("b")
    assert sandbox.found() == []


def test_permissions_that_the_host_changed_are_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "a").chmod(0o600)
    assert sandbox.conflicts() == {"a": change.CHANGED}


def test_a_file_that_only_the_host_changed_is_neither_change_nor_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.utime("a", 1, 1)
    (sandbox.host / "a").write_text("host\n")
    assert sandbox.found() == []


def test_a_large_file_that_both_changed_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": b"x" * (1 << 21)})
    sandbox.append("a", b"changed\n")
    with (sandbox.host / "a").open("ab") as file:
        file.write(b"host\n")
    assert sandbox.conflicts() == {"a": change.CHANGED}


def test_a_changed_file_that_the_host_deleted_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "a").unlink()
    assert sandbox.conflicts() == {"a": change.DELETED}


def test_a_changed_file_that_the_host_made_a_directory_of_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "a").unlink()
    (sandbox.host / "a").mkdir()
    assert sandbox.conflicts() == {"a": change.CHANGED}


def test_a_file_deleted_on_both_sides_is_no_change(review: Review) -> None:
    sandbox = review({"a": "old\n", "d/b": "1"})
    sandbox.unlink("a")
    sandbox.remove_tree("d")
    (sandbox.host / "a").unlink()
    shutil.rmtree(sandbox.host / "d")
    assert sandbox.found() == []


def test_a_deleted_file_that_the_host_changed_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.unlink("a")
    (sandbox.host / "a").write_text("host\n")
    assert sandbox.found() == ["deleted a!"]
    assert sandbox.conflicts() == {"a": change.CHANGED_AND_DELETED}


def test_a_file_that_both_made_differently_is_a_conflict(review: Review) -> None:
    sandbox = review({"keep": "1"})
    sandbox.create("a", b"sandbox\n")
    (sandbox.host / "a").write_text("host\n")
    assert sandbox.conflicts() == {"a": change.MADE_TOO}


def test_a_file_that_both_made_the_same_is_no_change(review: Review) -> None:
    sandbox = review({"keep": "1"})
    sandbox.create("a", b"same\n")
    (sandbox.host / "a").write_text("same\n")
    (sandbox.host / "a").chmod(0o644)
    assert sandbox.found() == []


def test_a_directory_that_both_made_leaves_what_each_put_into_it(review: Review) -> None:
    sandbox = review({"keep": "1"})
    sandbox.mkdir("d")
    sandbox.create("d/a", b"sandbox\n")
    (sandbox.host / "d").mkdir()
    (sandbox.host / "d").chmod(0o755)
    (sandbox.host / "d/b").write_text("host\n")
    assert sandbox.found() == ["added d/a"]


def test_a_deleted_directory_in_which_the_host_made_files_is_a_conflict(review: Review) -> None:
    sandbox = review({"d/a": "1", "d/e/b": "2"})
    sandbox.remove_tree("d")
    (sandbox.host / "d/e/new").write_text("host\n")
    assert sandbox.conflicts() == {
        "d": change.FILLED,
        "d/e": change.FILLED,
        "d/e/new": change.MADE_BELOW,
    }
    assert sandbox.found() == [
        "deleted d/!",
        "deleted d/a",
        "deleted d/e/!",
        "deleted d/e/b",
        "deleted d/e/new!",
    ]


def test_a_file_in_place_of_a_directory_in_which_the_host_made_files_is_a_conflict(review: Review) -> None:
    sandbox = review({"d/a": "1"})
    sandbox.remove_tree("d")
    sandbox.create("d", b"file")
    (sandbox.host / "d/new").write_text("host\n")
    assert sandbox.conflicts() == {"d": change.FILLED, "d/new": change.MADE_BELOW}


def test_a_directory_made_anew_in_whose_old_one_the_host_made_files_is_a_conflict_there(
    review: Review,
) -> None:
    sandbox = review({"d/a": "1"})
    sandbox.remove_tree("d")
    sandbox.mkdir("d")
    (sandbox.host / "d/new").write_text("host\n")
    assert sandbox.found() == ["deleted d/a", "deleted d/new!"]


def test_what_the_sandbox_made_in_a_directory_that_the_host_deleted_needs_it_again(review: Review) -> None:
    sandbox = review({"d/a": "1", "d/e/b": "2", "f/c": "3"})
    sandbox.create("d/e/new", b"1")
    sandbox.utime("f/c", 1, 1)
    shutil.rmtree(sandbox.host / "d")
    shutil.rmtree(sandbox.host / "f")
    assert sandbox.found() == ["added d/!", "added d/e/!", "added d/e/new"]
    assert sandbox.conflicts() == {"d": change.DELETED, "d/e": change.DELETED}


def test_a_moved_file_that_the_host_changed_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.rename("a", "b")
    (sandbox.host / "a").write_text("host\n")
    assert sandbox.found() == ["renamed a -> b!"]
    assert sandbox.conflicts() == {"b": change.CHANGED}


def test_a_file_moved_to_where_the_host_made_one_is_a_conflict(review: Review) -> None:
    sandbox = review({"a": "old\n"})
    sandbox.rename("a", "b")
    (sandbox.host / "b").write_text("host\n")
    assert sandbox.conflicts() == {"b": change.MADE_TOO}


def test_a_moved_directory_that_the_host_deleted_is_a_conflict(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    shutil.rmtree(sandbox.host / "a")
    assert sandbox.conflicts() == {"b": change.DELETED}


def test_a_directory_moved_to_where_the_host_made_something_is_a_conflict(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    (sandbox.host / "b").write_text("host\n")
    assert sandbox.conflicts() == {"b": change.MADE_TOO}


def test_what_the_host_makes_in_a_moved_directory_comes_along(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    (sandbox.host / "a/new").write_text("host\n")
    assert sandbox.found() == ["renamed a -> b/"]


def test_a_file_that_both_changed_in_a_moved_directory_is_a_conflict(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.write("b/x", b"changed")
    (sandbox.host / "a/x").write_text("host\n")
    assert sandbox.found() == ["renamed a -> b/", "modified b/x!"]


def test_what_the_sandbox_made_where_a_moved_directory_was_is_no_conflict_with_it(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.mkdir("a")
    sandbox.create("a/x", b"new")
    (sandbox.host / "a/y").write_text("host\n")
    assert sandbox.conflicts() == {}


def test_a_linked_file_that_the_host_changed_is_a_conflict_under_each_name(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": HardLink("a")})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "b").write_text("host\n")
    assert sandbox.conflicts() == {"a": change.CHANGED, "b": change.CHANGED}


def test_a_name_that_the_host_gave_another_file_is_no_name_of_the_changed_one(review: Review) -> None:
    sandbox = review({"a": "old\n", "b": HardLink("a")})
    sandbox.write("a", b"changed\n")
    (sandbox.host / "b").unlink()
    (sandbox.host / "b").write_text("host\n")
    assert sandbox.found() == ["modified a"]


def test_a_symlink_that_took_the_place_of_a_directory_is_not_followed(review: Review) -> None:
    sandbox = review({"d/a": "1", "elsewhere/a": "1"})
    sandbox.write("d/a", b"changed")
    shutil.rmtree(sandbox.host / "d")
    (sandbox.host / "d").symlink_to("elsewhere")
    assert sandbox.conflicts()["d/a"] == change.DELETED
