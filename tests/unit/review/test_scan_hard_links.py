"""What a scan finds of files with several names."""

from sandboxfs.review.scan import scan
from tests.support.tree import HardLink, Tree
from tests.unit.conftest import Review

LINKED: Tree = {"a": "shared\n", "b": HardLink("a"), "d/c": HardLink("a"), "other": "1"}


def test_a_file_changed_by_one_name_is_found_under_all_of_them(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.write("a", b"changed")
    found = sandbox.findings()
    assert [finding.path for finding in found] == [b"a", b"b", b"d/c"]
    assert [finding.links for finding in found] == [(b"a", b"b", b"d/c")] * 3
    with sandbox.layers() as layers:
        for finding in scan(layers):
            assert finding.old is not None
            assert finding.new is not None
            assert (finding.old.read(), finding.new.read()) == (b"shared\n", b"changed")


def test_a_file_touched_by_one_name_is_no_change_under_the_others(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.utime("a", 1, 1)
    assert sandbox.found() == []


def test_a_deleted_name_leaves_the_others_as_they_are(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.unlink("b")
    assert sandbox.found() == ["deleted b"]


def test_a_name_deleted_before_the_change_is_deleted(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.unlink("b")
    sandbox.write("a", b"changed")
    assert sandbox.found() == ["modified a", "deleted b", "modified d/c"]


def test_a_name_deleted_after_the_change_leaves_it_under_the_others(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.write("a", b"changed")
    sandbox.unlink("a")
    assert sandbox.found() == ["deleted a", "modified b", "modified d/c"]


def test_a_moved_name_leaves_the_others_as_they_are(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.rename("a", "new")
    assert sandbox.found() == ["renamed a -> new"]


def test_the_other_names_are_found_in_moved_directories(review: Review) -> None:
    sandbox = review(LINKED)
    sandbox.rename("d", "e")
    sandbox.write("a", b"changed")
    assert sandbox.found() == ["modified a", "modified b", "renamed d -> e/", "modified e/c"]


def test_new_names_of_a_new_file_know_each_other(review: Review) -> None:
    sandbox = review({})
    sandbox.create("a", b"1")
    sandbox.link("a", "b")
    assert [finding.links for finding in sandbox.findings()] == [(b"a", b"b")] * 2


def test_a_new_name_of_an_unchanged_file_is_added(review: Review) -> None:
    sandbox = review({"a": "1"})
    sandbox.link("a", "b")
    assert sandbox.found() == ["added b"]
