"""The full product of what a path was and what it became."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxfs.review.patch import load, patch
from sandboxfs.review.scan import survey
from sandboxfs.review.summary import file_changes, without_implied
from tests.support.drivers import Verbs
from tests.support.reviewed import apply_patch, as_git_sees, host_states, in_short, view_states
from tests.support.tree import Directory, Fifo, File, Symlink, Tree
from tests.unit.conftest import Review

# How each kind is built in the workspace, and made in the view. No two files have the same content.
LOWER: dict[str, Tree] = {
    "absent": {},
    "file": {"x": File("lower\n")},
    "executable": {"x": File("lower run\n", mode=0o755)},
    "symlink": {"x": Symlink("lower")},
    "empty directory": {"x/": Directory()},
    "full directory": {"x/a": "lower a\n", "x/deep/b": "lower b\n"},
    "fifo": {"x": Fifo()},
}


def make_full(view: Verbs) -> None:
    view.mkdir("x")
    view.create("x/a", b"upper a\n")
    view.mkdir("x/new")
    view.create("x/new/c", b"upper c\n")


UPPER: dict[str, Callable[[Verbs], None]] = {
    "absent": lambda view: None,
    "file": lambda view: view.create("x", b"upper\n"),
    "executable": lambda view: view.create("x", b"upper run\n", mode=0o755),
    "symlink": lambda view: view.symlink("upper", "x"),
    "empty directory": lambda view: view.mkdir("x"),
    "full directory": make_full,
    "fifo": lambda view: view.mkfifo("x"),
}
FULL_GONE = ["deleted x/a", "deleted x/deep/b"]
FULL_NEW = ["added x/a", "added x/new/c"]
# What is found, without directories that their content implies.
EXPECTED: dict[tuple[str, str], list[str]] = {
    ("absent", "absent"): [],
    ("absent", "file"): ["added x"],
    ("absent", "executable"): ["added x"],
    ("absent", "symlink"): ["added x"],
    ("absent", "empty directory"): ["added x/"],
    ("absent", "full directory"): FULL_NEW,
    ("absent", "fifo"): ["added x"],
    ("file", "absent"): ["deleted x"],
    ("file", "file"): ["modified x"],
    ("file", "executable"): ["modified x"],
    ("file", "symlink"): ["type x"],
    ("file", "empty directory"): ["type x/"],
    ("file", "full directory"): ["type x/", *FULL_NEW],
    ("file", "fifo"): ["type x"],
    ("executable", "absent"): ["deleted x"],
    ("executable", "file"): ["modified x"],
    ("executable", "executable"): ["modified x"],
    ("executable", "symlink"): ["type x"],
    ("executable", "empty directory"): ["type x/"],
    ("executable", "full directory"): ["type x/", *FULL_NEW],
    ("executable", "fifo"): ["type x"],
    ("symlink", "absent"): ["deleted x"],
    ("symlink", "file"): ["type x"],
    ("symlink", "executable"): ["type x"],
    ("symlink", "symlink"): ["modified x"],
    ("symlink", "empty directory"): ["type x/"],
    ("symlink", "full directory"): ["type x/", *FULL_NEW],
    ("symlink", "fifo"): ["type x"],
    ("empty directory", "absent"): ["deleted x/"],
    ("empty directory", "file"): ["type x"],
    ("empty directory", "executable"): ["type x"],
    ("empty directory", "symlink"): ["type x"],
    ("empty directory", "empty directory"): [],
    ("empty directory", "full directory"): FULL_NEW,
    ("empty directory", "fifo"): ["type x"],
    ("full directory", "absent"): FULL_GONE,
    ("full directory", "file"): ["type x", *FULL_GONE],
    ("full directory", "executable"): ["type x", *FULL_GONE],
    ("full directory", "symlink"): ["type x", *FULL_GONE],
    ("full directory", "empty directory"): FULL_GONE,
    ("full directory", "full directory"): ["modified x/a", "deleted x/deep/b", "added x/new/c"],
    ("full directory", "fifo"): ["type x", *FULL_GONE],
    ("fifo", "absent"): ["deleted x"],
    ("fifo", "file"): ["type x"],
    ("fifo", "executable"): ["type x"],
    ("fifo", "symlink"): ["type x"],
    ("fifo", "empty directory"): ["type x/"],
    ("fifo", "full directory"): ["type x/", *FULL_NEW],
    ("fifo", "fifo"): [],
}
PAIRS = [pytest.param(lower, upper, id=f"{lower}-{upper}") for lower in LOWER for upper in UPPER]


def replace(view: Verbs, upper: str) -> None:
    if view.exists("x"):
        if view.is_dir("x"):
            view.remove_tree("x")
        else:
            view.unlink("x")
    UPPER[upper](view)


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
def test_what_became_of_a_path_is_found(review: Review, lower: str, upper: str) -> None:
    sandbox = review(LOWER[lower])
    replace(sandbox, upper)
    found = without_implied(sandbox.findings())
    assert [in_short(finding) for finding in found] == EXPECTED[lower, upper]
    assert all(finding.conflict is None for finding in found)


@pytest.mark.parametrize(("lower", "upper"), PAIRS)
def test_what_became_of_a_path_is_carried_by_the_patch(
    review: Review, tmp_path: Path, lower: str, upper: str
) -> None:
    sandbox = review(LOWER[lower])
    replace(sandbox, upper)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in os.listdir(sandbox.host):
        # To git a FIFO and an empty directory are not there.
        if lower not in ("fifo", "empty directory"):
            copy_any(sandbox.host / name, copy / name)
    with sandbox.layers() as layers:
        found = survey(layers)
        text = b"".join(patch(load(change), binary=True) for change in file_changes(found, found.findings))
    apply_patch(text, copy)
    assert as_git_sees(host_states(copy)) == as_git_sees(view_states(sandbox))


def copy_any(source: Path, target: Path) -> None:
    if stat.S_ISDIR(source.lstat().st_mode):
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)
