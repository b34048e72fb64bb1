"""Can a rule be dodged by spelling a path in another way?"""

import errno
import os
from collections.abc import Callable

import pytest

from tests.security.conftest import Guarded
from tests.support.claims import fails_with
from tests.support.guarded import MakeArea
from tests.support.tree import Tree

TREE: Tree = {"hidden": "h\n", "denied": "d\n", "fixed": "f\n", "free/x": "x\n", "hidden-dir/x": "x\n"}

SPELLINGS = ["./{}", "free/../{}", "free/./../{}", "free//..//{}", "free/../free/../{}", ".//./{}"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_dots_on_the_way_do_not_lead_around_a_rule(area: MakeArea, spelling: str) -> None:
    view = os.fspath(area(TREE).view)
    with fails_with(errno.ENOENT):
        os.stat(os.path.join(view, spelling.format("hidden")))
    with fails_with(errno.EACCES):
        os.open(os.path.join(view, spelling.format("denied")), os.O_RDONLY)
    with fails_with(errno.EROFS):
        os.open(os.path.join(view, spelling.format("fixed")), os.O_WRONLY)


def test_a_way_through_a_hidden_directory_is_none(area: MakeArea) -> None:
    view = area(TREE).view
    with fails_with(errno.ENOENT):
        os.stat(view / "hidden-dir" / ".." / "free")
    with fails_with(errno.ENOENT):
        os.stat(view / "hidden-dir" / "x")


def test_a_descriptor_of_a_directory_does_not_lead_around_a_rule(area: MakeArea) -> None:
    made = area(TREE)
    inside = os.open(made.view / "free", os.O_PATH)
    try:
        with fails_with(errno.ENOENT):
            os.stat("../hidden", dir_fd=inside)
        with fails_with(errno.EACCES):
            os.open("../denied", os.O_RDONLY, dir_fd=inside)
        with fails_with(errno.EROFS):
            os.unlink("../fixed", dir_fd=inside)
    finally:
        os.close(inside)


@pytest.mark.parametrize("end", ["/", "//", "/.", "/./"])
def test_slashes_and_dots_at_the_end_change_nothing(area: MakeArea, end: str) -> None:
    view = os.fspath(area({**TREE, "denied-dir/x": "x", "fixed-dir/x": "x"}).view)
    with fails_with(errno.ENOENT):
        os.stat(f"{view}/hidden-dir{end}")
    with fails_with(errno.EACCES):
        os.listdir(f"{view}/denied-dir{end}")
    with fails_with(errno.EROFS):
        os.utime(f"{view}/fixed-dir{end}")
    # A file followed by a slash is never found; hidden, it must not say "not a directory".
    with fails_with(errno.ENOENT):
        os.stat(f"{view}/hidden{end}")


def test_a_directory_is_not_made_under_a_hidden_name_with_a_slash(area: MakeArea) -> None:
    view = os.fspath(area(TREE).view)
    for name in ("hidden-new/", "vanish/"):
        with fails_with(errno.EACCES):
            os.mkdir(f"{view}/{name}")


MAKERS: dict[str, Callable[[str], object]] = {
    "open": lambda path: os.close(os.open(path, os.O_CREAT | os.O_WRONLY)),
    "open exclusively": lambda path: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)),
    "open and truncate": lambda path: os.close(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)),
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod": os.mknod,
    "symlink": lambda path: os.symlink("x", path),
    "link": lambda path: os.link(os.path.join(os.path.dirname(path), "free", "x"), path),
    "rename": lambda path: os.rename(os.path.join(os.path.dirname(path), "free", "x"), path),
    "rename of a directory": lambda path: os.rename(os.path.join(os.path.dirname(path), "free"), path),
}


@pytest.mark.parametrize("how", MAKERS)
@pytest.mark.parametrize(
    ("name", "error"), [("hidden", errno.EACCES), ("denied", errno.EACCES), ("fixed", errno.EROFS)]
)
def test_a_ruled_name_that_does_not_exist_cannot_be_made(
    area: MakeArea, how: str, name: str, error: int
) -> None:
    made = area({"free/x": "x\n"})
    with fails_with(error):
        MAKERS[how](os.fspath(made.view / f"{name}-new"))
    assert sorted(os.listdir(made.view)) == ["free"]
    assert not (made.upper / f"{name}-new").exists()


@pytest.mark.parametrize("how", MAKERS)
def test_making_a_hidden_name_fails_alike_whether_it_is_there_or_not(area: MakeArea, how: str) -> None:
    made = area({"hidden-file": "secret\n", "hidden-dir/": "", "free/x": "x\n"})
    errors = set()
    for name in ("hidden-file", "hidden-dir", "hidden-absent"):
        with pytest.raises(OSError) as caught:
            MAKERS[how](os.fspath(made.view / name))
        errors.add(caught.value.errno)
    assert errors == {errno.EACCES}


LOOKALIKES = [
    ("hidden", "HIDDEN"),
    ("hidden", "hidd\u0435n"),  # a Cyrillic letter in the middle
    ("hidden", "h\u200bidden"),
    ("fixed", "\ufb01xed"),  # a ligature
    ("fixed", "Fixed"),
    ("denied", " denied"),
]


@pytest.mark.parametrize(("ruled", "other"), LOOKALIKES)
def test_a_lookalike_is_another_name(area: MakeArea, ruled: str, other: str) -> None:
    made = area({ruled: "ruled\n", other: "other\n"})
    (made.view / other).write_text("changed\n")
    assert (made.view / other).read_text() == "changed\n"
    with pytest.raises(OSError):
        (made.view / ruled).write_text("changed\n")
    assert not (made.upper / ruled).exists()


def test_a_rule_for_one_unicode_form_does_not_speak_for_the_other(guarded: Guarded) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    mount = guarded({composed: "c\n", decomposed: "d\n"}, f"{composed}=hide")
    assert os.listdir(mount.root) == [decomposed]
    with fails_with(errno.ENOENT):
        os.stat(mount.root / composed)
    (mount.root / decomposed).write_text("changed\n")


def test_a_newline_does_not_end_a_name(area: MakeArea) -> None:
    made = area({"hidden\nx": "1", "hidden\n": "2", "x\nhidden": "3", "\nhidden": "4", "a": "5"})
    assert sorted(os.listdir(made.view)) == ["\nhidden", "a", "x\nhidden"]
    for name in ("hidden\nx", "hidden\n"):
        with fails_with(errno.ENOENT):
            os.stat(made.view / name)
        with fails_with(errno.EACCES):
            (made.view / name).write_text("planted")


def test_bytes_that_are_no_text_do_not_end_a_name(area: MakeArea) -> None:
    made = area({b"hidden\xff\xfe": "1", b"fixed\x80": "2", b"\xffhidden": "3"})
    view = os.fsencode(made.view)
    assert sorted(os.listdir(view)) == [b"fixed\x80", b"\xffhidden"]
    with fails_with(errno.ENOENT):
        os.stat(view + b"/hidden\xff\xfe")
    with fails_with(errno.EROFS):
        os.truncate(view + b"/fixed\x80", 0)


def test_a_rule_for_a_place_does_not_cover_a_name_that_begins_alike(area: MakeArea) -> None:
    made = area({"vault/key": "k\n", "vault-2/key": "k\n", "vault/keys": "k\n"})
    (made.view / "vault-2" / "key").write_text("mine\n")
    (made.view / "vault" / "keys").write_text("mine\n")
    with fails_with(errno.EROFS):
        (made.view / "vault" / "key").write_text("mine\n")


def test_a_directory_rule_covers_directories_only_and_a_file_of_that_name_cannot_become_one(
    area: MakeArea,
) -> None:
    made = area({"sub/vanish": "a file\n", "full/x": "x\n", "other/vanish/x": "x\n"})
    assert (made.view / "sub" / "vanish").read_text() == "a file\n"
    assert os.listdir(made.view / "other") == []
    os.unlink(made.view / "sub" / "vanish")
    with fails_with(errno.EACCES):
        os.rename(made.view / "full", made.view / "sub" / "vanish")
    with fails_with(errno.EACCES):
        os.mkdir(made.view / "sub" / "vanish")
    with pytest.raises(OSError):
        (made.view / "other" / "vanish").write_text("over the hidden directory")
    assert (made.lower / "other" / "vanish" / "x").read_text() == "x\n"
