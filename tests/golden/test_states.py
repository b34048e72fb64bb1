"""States of earlier versions: each is put up again, and every command does with it what it did then.

What is in a state, and what is expected of it, is beside each other in `v*/states`. What must be true of any
state, whatever is expected, is said here.
"""

import os
from pathlib import Path

import pytest

from tests.golden.checking import HERE, agree, entries_of, load
from tests.golden.relocation import put, take
from tests.golden.replaying import run, snapshot
from tests.golden.scenes import EVERYTHING, FEW
from tests.support.tree import Tree, build

_TITLE = "script: "
# In how many further places a state is put up until the host happens to number the inodes as they were.
_PLACES = 3
FILES = {f"{file.parts[-3]}-{file.name.split('.')[0]}": file for file in sorted(HERE.glob("v*/states/*"))}
SCRIPTS = [
    pytest.param(file, title, id=f"{name}-{title.removeprefix(_TITLE)}")
    for name, file in FILES.items()
    for title in load(file)
    if title.startswith(_TITLE)
]


def put_up(name: str, place: Path) -> Path:
    put(entries_of(load(FILES[name])), place / "golden")
    return place / "golden"


def succeed(root: Path, *words: str) -> None:
    done = run(words, root, os.environ)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize(("file", "title"), SCRIPTS)
def test_a_state_of_an_earlier_version_means_what_it_meant(tmp_path: Path, file: Path, title: str) -> None:
    state = load(file)
    root = tmp_path / "golden"
    put(entries_of(state), root)
    agree(state[title], root, os.environ)


@pytest.mark.parametrize(
    ("name", "tree"),
    [("v1-committed", EVERYTHING), ("v1-committed-in-part", FEW), ("v1-commit-killed-when-applied", FEW)],
)
def test_what_an_earlier_version_committed_is_taken_back_to_the_last_detail(
    tmp_path: Path, name: str, tree: Tree
) -> None:
    root = put_up(name, tmp_path)
    succeed(root, "undo", "-s", "golden", "--yes")
    assert snapshot(root / "workspace") == snapshot(build(tmp_path / "as it was", tree))


@pytest.mark.parametrize(
    "name",
    [
        "v1-commit-killed-at-its-intent",
        "v1-commit-killed-when-staged",
        "v1-commit-without-room-for-what-was",
    ],
)
def test_a_commit_that_an_earlier_version_did_not_apply_is_made_all_the_same(
    tmp_path: Path, name: str
) -> None:
    root, other = put_up(name, tmp_path), put_up("v1-undone", tmp_path / "other")
    for place in (root, other):
        succeed(place, "commit", "-s", "golden", "--yes")
    assert snapshot(root / "workspace") == snapshot(other / "workspace")


@pytest.mark.parametrize("name", FILES)
def test_a_state_that_is_put_up_is_described_as_it_was(tmp_path: Path, name: str) -> None:
    """So nothing is lost between what an earlier version wrote and what the tests have it read.

    The host numbers inodes as it likes: in another order, which is that of names in the index, or with the
    number of an object that was gone already. Then the state is put up once more.
    """
    described = entries_of(load(FILES[name]))
    found = take(put_up(name, tmp_path))
    for attempt in range(_PLACES):
        if found == described:
            break
        found = take(put_up(name, tmp_path / str(attempt)))
    assert found == described
