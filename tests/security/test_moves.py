"""Can a rule be escaped, or somebody else's brought about, by renaming?"""

import errno
import os
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support.claims import fails_with, upper_names
from tests.support.guarded import MakeArea
from tests.support.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2
from tests.support.tree import Tree


def exchange(one: Path, other: Path) -> None:
    renameat2(os.fsencode(one), os.fsencode(other), RENAME_EXCHANGE)


REFUSALS = {"hidden": errno.ENOENT, "denied": errno.EACCES, "fixed": errno.EROFS}
INTO = {"hidden": errno.EACCES, "denied": errno.EACCES, "fixed": errno.EROFS}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_file_cannot_be_moved_out_of_a_ruled_place(area: MakeArea, name: str) -> None:
    made = area({name: "ruled\n", f"{name}-dir/x": "ruled\n", "free/": ""})
    for source in (name, f"{name}-dir", f"{name}-dir/x"):
        with fails_with(REFUSALS[name]):
            os.rename(made.view / source, made.view / "free" / "x")
    assert upper_names(made.upper) == []


@pytest.mark.parametrize("name", REFUSALS)
def test_a_file_cannot_be_moved_into_a_ruled_place(area: MakeArea, name: str) -> None:
    made = area({"free": "f\n", "free-dir/x": "x\n", f"{name}-dir/x": "ruled\n"})
    for source in ("free", "free-dir"):
        with fails_with(INTO[name]):
            os.rename(made.view / source, made.view / f"{name}-new")
        with fails_with(REFUSALS[name]):
            os.rename(made.view / source, made.view / f"{name}-dir" / "y")
    assert upper_names(made.upper) == []


@pytest.mark.parametrize("name", REFUSALS)
def test_a_file_cannot_be_moved_across_one_ruled_place(area: MakeArea, name: str) -> None:
    made = area({f"{name}-dir/a/x": "ruled\n", f"{name}-dir/b/": ""})
    with fails_with(REFUSALS[name]):
        os.rename(made.view / f"{name}-dir" / "a" / "x", made.view / f"{name}-dir" / "b" / "x")
    assert upper_names(made.upper) == []


@pytest.mark.parametrize("name", REFUSALS)
def test_ruled_and_free_files_cannot_be_exchanged(area: MakeArea, name: str) -> None:
    made = area({name: "ruled\n", f"{name}-dir/x": "x\n", "free": "f\n", "free-dir/y": "y\n"})
    for ruled, free in (
        (name, "free"),
        (f"{name}-dir", "free-dir"),
        (name, "free-dir"),
        (f"{name}-dir/x", "free"),
    ):
        for pair in ((ruled, free), (free, ruled)):
            with pytest.raises(OSError) as caught:
                exchange(made.view / pair[0], made.view / pair[1])
            assert caught.value.errno in (REFUSALS[name], INTO[name])
    assert (made.view / "free").read_text() == "f\n"
    assert upper_names(made.upper) == []


VAULT: Tree = {
    "box/vault/key": "k\n",
    "box/vault/secret": "s\n",
    "box/vault/closed": "c\n",
    "box/vault/free": "f\n",
    "plain/key": "mine\n",
    "plain/free": "mine\n",
}


@pytest.mark.parametrize("entry", ["key", "secret", "closed"])
def test_a_directory_cannot_be_renamed_when_that_would_free_what_is_in_it(area: MakeArea, entry: str) -> None:
    made = area({f"box/vault/{entry}": "ruled\n"})
    with pytest.raises(OSError) as caught:
        os.rename(made.view / "box" / "vault", made.view / "box" / "opened")
    assert caught.value.errno in (errno.EACCES, errno.EROFS)
    assert upper_names(made.upper) == []


def test_a_directory_far_above_cannot_be_renamed_when_that_would_free_what_is_in_it(guarded: Guarded) -> None:
    mount = guarded({"a/b/c/key": "k\n", "a/b/x": "x\n"}, "a/b/c/key=ro", "a/*/d/e=hide")
    for source, target in (("a", "z"), ("a/b", "a/z"), ("a/b/c", "a/b/z"), ("a/b", "z")):
        with fails_with(errno.EROFS):
            os.rename(mount.root / source, mount.root / target)
    assert upper_names(mount.upper) == []


def test_a_directory_cannot_be_moved_to_where_a_rule_would_cover_what_is_in_it(area: MakeArea) -> None:
    made = area({"box/": "", "plain/key": "mine\n", "plain/secret": "mine\n"})
    with pytest.raises(OSError) as caught:
        os.rename(made.view / "plain", made.view / "box" / "vault")
    assert caught.value.errno in (errno.EACCES, errno.EROFS)


def test_a_directory_under_the_same_rules_at_both_ends_can_be_moved_and_they_hold_there(
    area: MakeArea,
) -> None:
    made = area(VAULT)
    os.rename(made.view / "box", made.view / "crate")
    inside = made.view / "crate" / "vault"
    assert sorted(os.listdir(inside)) == ["closed", "free", "key"]
    with fails_with(errno.EROFS):
        (inside / "key").write_text("changed\n")
    with fails_with(errno.ENOENT):
        (inside / "secret").read_text()
    with fails_with(errno.EACCES):
        (inside / "closed").read_text()
    (inside / "free").write_text("changed\n")


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE])
def test_a_directory_under_the_same_rules_can_be_moved_while_files_in_it_are_open(
    area: MakeArea, flags: int
) -> None:
    made = area(VAULT)
    fd = os.open(made.view / "box" / "vault" / "free", os.O_RDWR)
    try:
        renameat2(os.fsencode(made.view / "box"), os.fsencode(made.view / "crate"), flags)
        os.pwrite(fd, b"F", 0)
    finally:
        os.close(fd)
    assert (made.view / "crate" / "vault" / "free").read_text() == "F\n"


def test_directories_cannot_be_exchanged_when_that_would_free_what_is_in_either(area: MakeArea) -> None:
    made = area(VAULT)
    for pair in (("box/vault", "plain"), ("plain", "box/vault")):
        with pytest.raises(OSError) as caught:
            exchange(made.view / pair[0], made.view / pair[1])
        assert caught.value.errno in (errno.EACCES, errno.EROFS)
    assert upper_names(made.upper) == []


def test_a_ruled_name_cannot_be_made_by_renaming_the_directory_above_a_new_file(area: MakeArea) -> None:
    made = area({"box/": ""})
    (made.view / "box" / "plain").mkdir()
    (made.view / "box" / "plain" / "key").write_text("planted\n")
    with fails_with(errno.EROFS):
        os.rename(made.view / "box" / "plain", made.view / "box" / "vault")


def test_a_move_step_by_step_does_not_escape_a_rule_either(area: MakeArea) -> None:
    made = area(VAULT)
    os.mkdir(made.view / "way")
    os.rename(made.view / "box", made.view / "way" / "box")
    with pytest.raises(OSError):
        os.rename(made.view / "way" / "box" / "vault", made.view / "way" / "box" / "open")
    with pytest.raises(OSError):
        os.rename(made.view / "way" / "box" / "vault" / "key", made.view / "way" / "key")
    with fails_with(errno.EROFS):
        os.truncate(made.view / "way" / "box" / "vault" / "key", 0)


def test_an_empty_directory_is_not_replaced_by_one_whose_content_a_rule_would_cover(area: MakeArea) -> None:
    made = area({"box/vault/": "", "plain/key": "mine\n"})
    with fails_with(errno.EROFS):
        os.rename(made.view / "plain", made.view / "box" / "vault")
    assert (made.view / "plain" / "key").read_text() == "mine\n"


def test_what_moved_to_a_free_place_and_back_is_under_its_rule_again(guarded: Guarded) -> None:
    mount = guarded({"src/a": "a\n", "lib/": ""})
    os.rename(mount.root / "src" / "a", mount.root / "lib" / "a")
    mount.allow("lib/a", "ro")
    with fails_with(errno.EROFS):
        os.rename(mount.root / "lib" / "a", mount.root / "src" / "a")
    with fails_with(errno.EROFS):
        (mount.root / "lib" / "a").write_text("x")


def test_a_large_tree_is_looked_through_before_it_may_move(guarded: Guarded) -> None:
    tree: dict[str | bytes, str] = {f"d/{a}/{b}/f": "x" for a in range(12) for b in range(12)}
    mount = guarded({**tree, "d/11/11/g": "ruled\n"}, "d/11/11/g=ro")
    with fails_with(errno.EROFS):
        os.rename(mount.root / "d", mount.root / "e")
    os.rename(mount.root / "d" / "10", mount.root / "e")
    assert len(os.listdir(mount.root / "e")) == 12
