"""Marks for rights, special files and sandboxfs' own rules, on changes as they are found."""

import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.commit.plan import with_flags
from sandboxfs.policy.model import Policy
from sandboxfs.review.scan import survey
from sandboxfs.review.summary import FlagContext
from tests.support.committed import Committed
from tests.support.reviewed import Reviewed
from tests.support.tree import Tree
from tests.unit.conftest import Review

# An access list with an entry for user 1 (read and write), as the kernel takes it.
LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", *entry)
    for entry in [(1, 6, 0xFFFFFFFF), (2, 6, 1), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
)
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
TREE: Tree = {"a": "a\n", "d/b": "b\n", ".sandboxfs.toml": '[[rule]]\npath = "x"\nmode = "hide"\n'}


def marked(sandbox: Reviewed) -> dict[str, list[str]]:
    with sandbox.layers() as layers:
        flags_of = FlagContext(b"/w", Policy()).flags
        found = {os.fsdecode(one.path): list(map(str, flags_of(one))) for one in survey(layers).findings}
    return {path: flags for path, flags in found.items() if flags}


def test_what_every_user_may_write_is_marked(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.chmod("a", 0o666)
    sandbox.chmod("d", 0o1777)
    sandbox.create("new", b"x")
    sandbox.chmod("new", 0o602)
    assert marked(sandbox) == {"a": ["writable"], "d": ["writable"], "new": ["writable"]}


def test_what_every_user_could_write_before_is_not(review: Review) -> None:
    sandbox = review(TREE)
    (sandbox.lower / "a").chmod(0o666)
    sandbox.write("a", b"changed\n")
    sandbox.symlink("a", "link")
    assert marked(sandbox) == {}


def test_fifo_and_socket_are_marked(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.mknod("fifo", stat.S_IFIFO | 0o600)
    sandbox.mknod("socket", stat.S_IFSOCK | 0o600)
    assert marked(sandbox) == {"fifo": ["fifo"], "socket": ["socket"]}


def test_access_list_that_was_not_there_is_marked(review: Review) -> None:
    sandbox = review(TREE)
    sandbox.write("a", b"changed\n")
    sandbox.create("new", b"x")
    sandbox.mkdir("made")
    sandbox.chmod("d", 0o700)
    os.setxattr(sandbox.upper / "a", ACCESS, LIST)
    os.setxattr(sandbox.upper / "new", ACCESS, LIST)
    os.setxattr(sandbox.upper / "d", DEFAULT, LIST)
    os.setxattr(sandbox.upper / "made", DEFAULT, LIST)
    assert marked(sandbox) == {"a": ["acl"], "d": ["acl"], "made": ["acl"], "new": ["acl"]}


def test_access_list_that_was_there_or_is_given_by_the_directory_is_not(review: Review) -> None:
    sandbox = review(TREE)
    os.setxattr(sandbox.lower / "a", ACCESS, LIST)
    os.setxattr(sandbox.lower / "d", DEFAULT, LIST)
    sandbox.write("a", b"changed\n")
    sandbox.create("d/new", b"x")
    os.setxattr(sandbox.upper / "a", ACCESS, LIST)
    os.setxattr(sandbox.upper / "d", DEFAULT, LIST)
    os.setxattr(sandbox.upper / "d/new", ACCESS, LIST)
    assert marked(sandbox) == {}


def removed(sandbox: Reviewed) -> None:
    sandbox.unlink(".sandboxfs.toml")


def moved(sandbox: Reviewed) -> None:
    sandbox.rename(".sandboxfs.toml", "rules")


def emptied(sandbox: Reviewed) -> None:
    sandbox.write(".sandboxfs.toml", b"")


def replaced(sandbox: Reviewed) -> None:
    sandbox.unlink(".sandboxfs.toml")
    sandbox.symlink("a", ".sandboxfs.toml")


@pytest.mark.parametrize("act", [removed, moved, emptied, replaced])
def test_any_change_of_the_rules_is_marked(review: Review, act: Callable[[Reviewed], None]) -> None:
    sandbox = review(TREE)
    act(sandbox)
    assert list(marked(sandbox).values()) == [["policy"]]


def test_plan_marks_the_removal_of_the_rules(tmp_path: Path) -> None:
    sandbox = Committed(tmp_path, TREE)
    try:
        sandbox.unlink(".sandboxfs.toml")
        with sandbox.layers():
            plan = with_flags(sandbox.plan(), FlagContext(b"/w", Policy()).flags)
        assert plan.flags == {b".sandboxfs.toml": ["policy"]}
    finally:
        sandbox.abandon()
