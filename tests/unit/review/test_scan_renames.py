"""What a scan finds when files and directories were moved."""

from sandboxfs.review.change import ChangeKind
from tests.support.syscalls import RENAME_EXCHANGE
from tests.support.tree import Symlink
from tests.unit.conftest import Review


def test_a_moved_file_is_renamed(review: Review) -> None:
    sandbox = review({"a": "1\n", "d/x": "2"})
    sandbox.rename("a", "d/b")
    (finding,) = sandbox.findings()
    assert (finding.kind, finding.path, finding.old_path) == (ChangeKind.RENAMED, b"d/b", b"a")
    assert finding.lower_path == b"a"
    assert finding.lower is not None
    assert finding.lower.size == 2


def test_a_moved_file_is_deleted_and_added_when_renames_are_not_asked_for(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.rename("a", "b")
    assert sandbox.found(renames=False) == ["deleted a", "added b"]


def test_a_file_moved_and_then_changed_is_renamed(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.rename("a", "b")
    sandbox.write("b", b"something else\n")
    assert sandbox.found() == ["renamed a -> b"]


def test_a_file_moved_twice_is_renamed_once(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.rename("a", "b")
    sandbox.rename("b", "c")
    assert sandbox.found() == ["renamed a -> c"]


def test_a_file_moved_there_and_back_is_no_change(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.rename("a", "b")
    sandbox.rename("b", "a")
    assert sandbox.found() == []


def test_a_chain_of_moved_files_keeps_each_place(review: Review) -> None:
    sandbox = review({"a": "1\n", "b": "22\n"})
    sandbox.rename("b", "c")
    sandbox.rename("a", "b")
    assert sandbox.found() == ["deleted a", "modified b", "added c"]


def test_a_file_moved_over_another_is_a_modification_and_a_deletion(review: Review) -> None:
    sandbox = review({"a": "1\n", "b": "22\n"})
    sandbox.rename("a", "b")
    assert sandbox.found() == ["deleted a", "modified b"]


def test_a_file_made_where_a_moved_one_was_is_a_modification(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.rename("a", "a~")
    sandbox.create("a", b"new\n")
    assert sandbox.found() == ["modified a", "added a~"]


def test_a_moved_symlink_is_renamed(review: Review) -> None:
    sandbox = review({"link": Symlink("a")})
    sandbox.rename("link", "other")
    assert sandbox.found() == ["renamed link -> other"]


def test_a_file_moved_out_of_a_directory_that_was_then_deleted_is_renamed(review: Review) -> None:
    sandbox = review({"d/a": "1\n", "d/b": "2\n"})
    sandbox.rename("d/a", "a")
    sandbox.remove_tree("d")
    assert sandbox.found() == ["renamed d/a -> a", "deleted d/", "deleted d/b"]


def test_a_file_linked_and_then_deleted_under_its_old_name_is_renamed(review: Review) -> None:
    sandbox = review({"a": "1\n"})
    sandbox.link("a", "b")
    sandbox.unlink("a")
    assert sandbox.found() == ["renamed a -> b"]


def test_a_rename_is_found_by_either_end(review: Review) -> None:
    sandbox = review({"a": "1\n", "d/x": "1"})
    sandbox.rename("a", "b")
    sandbox.rename("d", "e")
    assert sandbox.found(b"a") == sandbox.found(b"b") == ["renamed a -> b"]
    assert sandbox.found(b"d") == sandbox.found(b"e") == ["renamed d -> e/"]


def test_a_moved_directory_is_one_finding(review: Review) -> None:
    sandbox = review({"a/x": "1", "a/y/z": "2"})
    sandbox.rename("a", "b")
    (finding,) = sandbox.findings()
    assert (finding.kind, finding.path, finding.old_path, finding.is_dir) == (
        ChangeKind.RENAMED,
        b"b",
        b"a",
        True,
    )
    assert finding.lower_path == b"a"


def test_changes_in_a_moved_directory_know_where_the_workspace_has_it(review: Review) -> None:
    sandbox = review({"a/x": "1", "a/y": "2", "a/z": "3"})
    sandbox.rename("a", "b")
    sandbox.write("b/x", b"changed")
    sandbox.unlink("b/y")
    sandbox.create("b/new")
    places = {finding.path: (finding.kind.value, finding.lower_path) for finding in sandbox.findings()}
    assert places == {
        b"b": ("renamed", b"a"),
        b"b/x": ("modified", b"a/x"),
        b"b/y": ("deleted", b"a/y"),
        b"b/new": ("added", b"a/new"),
    }


def test_a_directory_moved_twice_is_renamed_once(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.rename("b", "c")
    assert sandbox.found() == ["renamed a -> c/"]


def test_a_directory_moved_there_and_back_is_no_change(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.rename("b", "a")
    assert sandbox.found() == []


def test_a_directory_made_where_a_moved_one_was_is_added(review: Review) -> None:
    sandbox = review({"a/x": "1", "a/y": "2"})
    sandbox.rename("a", "b")
    sandbox.mkdir("a")
    sandbox.create("a/x", b"new")
    assert sandbox.found() == ["added a/", "added a/x", "renamed a -> b/"]


def test_a_file_made_where_a_moved_directory_was_is_added(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.create("a", b"new")
    assert sandbox.found() == ["added a", "renamed a -> b/"]


def test_a_chain_of_moved_directories_keeps_each_apart(review: Review) -> None:
    sandbox = review({"a/x": "1", "b/x": "2"})
    sandbox.rename("b", "c")
    sandbox.rename("a", "b")
    sandbox.write("b/x", b"changed")
    assert sandbox.found() == ["renamed a -> b/", "modified b/x", "renamed b -> c/"]


def test_exchanged_directories_are_both_renamed(review: Review) -> None:
    sandbox = review({"a/x": "1", "b/y": "2"})
    sandbox.rename("a", "b", RENAME_EXCHANGE)
    assert sandbox.found() == ["renamed b -> a/", "renamed a -> b/"]


def test_directories_exchanged_in_three_steps_are_both_renamed(review: Review) -> None:
    sandbox = review({"a/x": "1", "b/y": "2"})
    sandbox.rename("a", "t")
    sandbox.rename("b", "a")
    sandbox.rename("t", "b")
    assert sandbox.found() == ["renamed b -> a/", "renamed a -> b/"]


def test_a_directory_moved_over_a_deleted_one_is_a_deletion_and_a_rename(review: Review) -> None:
    sandbox = review({"a/x": "1", "b/x": "2", "b/y": "3"})
    sandbox.remove_tree("b")
    sandbox.rename("a", "b")
    assert sandbox.found() == ["deleted b/", "renamed a -> b/", "deleted b/x", "deleted b/y"]


def test_a_directory_moved_over_a_deleted_file_is_a_deletion_and_a_rename(review: Review) -> None:
    sandbox = review({"a/x": "1", "f": "2"})
    sandbox.unlink("f")
    sandbox.rename("a", "f")
    assert sandbox.found() == ["deleted f", "renamed a -> f/"]


def test_a_moved_and_deleted_directory_is_deleted(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.remove_tree("b")
    assert sandbox.found() == ["deleted a/", "deleted a/x"]


def test_a_directory_moved_out_of_a_moved_one_is_renamed_on_its_own(review: Review) -> None:
    sandbox = review({"a/x": "1", "a/sub/y": "2"})
    sandbox.rename("a", "b")
    sandbox.rename("b/sub", "c")
    assert sandbox.found() == ["renamed a -> b/", "renamed a/sub -> c/"]


def test_a_directory_moved_within_a_moved_one_is_renamed_on_its_own(review: Review) -> None:
    sandbox = review({"a/x": "1", "a/sub/y": "2"})
    sandbox.rename("a", "b")
    sandbox.rename("b/sub", "b/bus")
    assert sandbox.found() == ["renamed a -> b/", "renamed a/sub -> b/bus/"]


def test_a_directory_moved_out_of_a_deleted_one_is_not_deleted(review: Review) -> None:
    sandbox = review({"d/sub/y": "2", "d/x": "1"})
    sandbox.rename("d/sub", "sub")
    sandbox.remove_tree("d")
    assert sandbox.found() == ["deleted d/", "deleted d/x", "renamed d/sub -> sub/"]


def test_a_directory_moved_into_a_new_one_is_renamed(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.mkdir("new")
    sandbox.rename("a", "new/a")
    sandbox.write("new/a/x", b"changed")
    assert sandbox.found() == ["added new/", "renamed a -> new/a/", "modified new/a/x"]


def test_a_directory_put_back_into_one_that_was_made_anew_is_no_change(review: Review) -> None:
    sandbox = review({"d/sub/y": "2", "d/x": "1"})
    sandbox.rename("d/sub", "t")
    sandbox.remove_tree("d")
    sandbox.mkdir("d")
    sandbox.rename("t", "d/sub")
    assert sandbox.found() == ["deleted d/x"]


def test_a_directory_put_back_where_its_parent_was_moved_away_is_found_with_its_source(
    review: Review,
) -> None:
    sandbox = review({"d/sub/y": "2", "d/x": "1"})
    sandbox.rename("d", "t")
    sandbox.mkdir("d")
    sandbox.rename("t/sub", "d/sub")
    assert sandbox.found() == ["added d/", "renamed d/sub -> d/sub/", "renamed d -> t/"]


def test_a_file_moved_within_a_moved_directory_is_renamed_from_where_the_workspace_has_it(
    review: Review,
) -> None:
    sandbox = review({"a/x": "1", "a/y": "2"})
    sandbox.rename("a", "b")
    sandbox.rename("b/x", "b/z")
    assert sandbox.found() == ["renamed a -> b/", "renamed a/x -> b/z"]


def test_a_directory_that_the_sandbox_made_and_moved_is_added_where_it_is(review: Review) -> None:
    sandbox = review({"a": "1"})
    sandbox.mkdir("d")
    sandbox.create("d/x")
    sandbox.rename("d", "e")
    assert sandbox.found() == ["added e/", "added e/x"]


def test_a_moved_directory_with_other_permissions_has_both_modes(review: Review) -> None:
    sandbox = review({"a/x": "1"})
    sandbox.rename("a", "b")
    sandbox.chmod("b", 0o700)
    (finding,) = sandbox.findings()
    assert finding.old is not None
    assert finding.new is not None
    assert (finding.old.mode & 0o777, finding.new.mode & 0o777) == (0o755, 0o700)
