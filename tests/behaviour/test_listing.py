"""Listing: every name once, none that is hidden, and a position that holds while names come and go."""

import pytest

from tests.conftest import MakeSandbox
from tests.support.drivers import OpenDir, Sandbox
from tests.support.tree import Tree

MANY = 1000


def rest_of(directory: OpenDir) -> list[bytes]:
    found: list[bytes] = []
    while portion := directory.read():
        found += [name for name, _ in portion]
    return found


def many() -> Tree:
    return {f"d/f{number:04}": "" for number in range(MANY)}


def test_a_merged_directory_lists_every_name_once(sandbox: Sandbox) -> None:
    sandbox.create("dir/new")
    sandbox.append("dir/one", b"changed")
    sandbox.unlink("dir/two")
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"new", b"one"]
    sandbox.remount()
    assert sorted(sandbox.names("dir")) == [b"deep", b"hard3", b"new", b"one"]


def test_a_listing_begins_with_dot_and_dot_dot(sandbox: Sandbox) -> None:
    with sandbox.open_dir("dir") as directory:
        names = rest_of(directory)
    assert sorted(names[:2]) == [b".", b".."]
    assert len(names) == 6


def test_a_large_directory_lists_every_name_once(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(many())
    for number in range(0, MANY, 10):
        sandbox.unlink(f"d/f{number:04}")
    for number in range(100):
        sandbox.create(f"d/new{number}")
    expected = {b"f%04d" % number for number in range(MANY) if number % 10} | {
        b"new%d" % number for number in range(100)
    }
    names = sandbox.names("d")
    assert len(names) == len(expected)
    assert set(names) == expected


def test_removing_what_was_listed_neither_skips_nor_repeats(make_sandbox: MakeSandbox) -> None:
    """This is how rm -rf goes about it."""
    sandbox = make_sandbox(many())
    seen: list[bytes] = []
    with sandbox.open_dir("d") as directory:
        while portion := directory.read():
            for name, _ in portion:
                if name not in (b".", b".."):
                    seen.append(name)
                    sandbox.unlink(b"d/" + name)
    assert sorted(seen) == sorted(b"f%04d" % number for number in range(MANY))
    assert sandbox.names("d") == []
    sandbox.rmdir("d")


def test_names_that_stay_are_listed_once_while_others_come_and_go(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(many())
    seen: list[bytes] = []
    turn = 0
    with sandbox.open_dir("d") as directory:
        while portion := directory.read():
            seen += [name for name, _ in portion]
            sandbox.create(f"d/new{turn}")
            if turn:
                sandbox.unlink(f"d/new{turn - 1}")
            turn += 1
    stayed = [name for name in seen if name.startswith(b"f")]
    assert sorted(stayed) == sorted(b"f%04d" % number for number in range(MANY))
    assert len(seen) == len(set(seen))


def test_a_position_can_be_returned_to(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox(many())
    with sandbox.open_dir("d") as directory:
        first = directory.read()
        second = directory.read()
        remaining = rest_of(directory)
        directory.seek(first[-1][1])
        again = rest_of(directory)
        assert again == [name for name, _ in second] + remaining
        directory.seek(first[0][1])
        assert rest_of(directory)[: len(first) - 1] == [name for name, _ in first[1:]]


def test_rewinding_shows_what_is_new(sandbox: Sandbox) -> None:
    with sandbox.open_dir("dir") as directory:
        assert b"new" not in rest_of(directory)
        sandbox.create("dir/new")
        sandbox.unlink("dir/one")
        directory.seek(0)
        names = rest_of(directory)
    assert b"new" in names
    assert b"one" not in names


def test_a_removed_directory_that_is_still_open_lists_nothing(sandbox: Sandbox) -> None:
    with sandbox.open_dir("hollow") as directory:
        sandbox.rmdir("hollow")
        directory.seek(0)
        try:
            assert set(rest_of(directory)) <= {b".", b".."}
        except FileNotFoundError:
            # The kernel does not even ask about a directory that it knows to be dead.
            assert sandbox.kind == "mount"


def test_marks_and_whiteouts_are_not_listed(sandbox: Sandbox) -> None:
    sandbox.unlink("file")
    sandbox.remove_tree("dir")
    sandbox.mkdir("dir")
    sandbox.rename("hollow", "moved")
    sandbox.remount()
    assert sandbox.names("dir") == []
    assert b"file" not in sandbox.names()
    assert b"hollow" not in sandbox.names()
    assert b"moved" in sandbox.names()


@pytest.mark.workload
def test_a_directory_of_a_hundred_thousand_entries_lists_all(make_sandbox: MakeSandbox) -> None:
    sandbox = make_sandbox({"d/": ""})
    for number in range(100_000):
        (sandbox.lower / "d" / f"f{number}").touch()
    sandbox.host_changed()
    assert len(sandbox.names("d")) == 100_000
    sandbox.unlink("d/f5000")
    sandbox.create("d/new")
    names = sandbox.names("d")
    assert len(names) == len(set(names)) == 100_000
