"""Index files of git: the same but for the stat cache, or not."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from sandboxfs.review.git_files import names_any, parse_index, same_entries


def git(where: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(where), *words]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(params=[("2", "sha1"), ("4", "sha1"), ("2", "sha256")], ids="-".join)
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    version, digest = request.param
    git(tmp_path, "init", f"--object-format={digest}")
    git(tmp_path, "config", "index.version", version)
    for name in ("a", "aa", "long-" * 20, "d/b", "d/bb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", ".")
    return tmp_path


def index(where: Path) -> bytes:
    return (where / ".git/index").read_bytes()


def is_sha256(where: Path) -> bool:
    return "sha256" in (where / ".git/config").read_text()


def test_index_with_another_stat_cache_is_the_same(repository: Path) -> None:
    before = index(repository)
    os.utime(repository / "a", (1, 1))
    os.utime(repository / "d/bb", (1, 1))
    git(repository, "status")
    assert index(repository) != before
    # Longer digests are not understood, and so nothing is said to be the same.
    assert same_entries(before, index(repository)) is not is_sha256(repository)


@pytest.mark.parametrize(
    "words",
    [
        ("update-index", "--chmod=+x", "aa"),
        ("rm", "--cached", "d/b"),
        ("add", "a"),
        ("add", "-N", "new"),
        ("update-index", "--assume-unchanged", "d/bb"),
        ("update-index", "--skip-worktree", "d/bb"),
        ("mv", "a", "b"),
    ],
)
def test_index_that_lists_something_else_is_not_the_same(repository: Path, words: tuple[str, ...]) -> None:
    before = index(repository)
    (repository / "a").write_text("other")
    (repository / "new").write_text("new")
    git(repository, *words)
    assert not same_entries(before, index(repository))


def test_what_is_no_index_is_not_the_same(repository: Path) -> None:
    whole = index(repository)
    for broken in (b"", b"DIRC", whole[:-1], whole[:40] + b"x" + whole[41:], whole + b"more"):
        assert not same_entries(broken, broken)
        assert not same_entries(whole, broken)


def test_damaged_index_whose_digest_was_made_right_is_refused(repository: Path) -> None:
    whole = index(repository)[:-20]
    for end in range(len(whole)):
        cut = whole[:end] + hashlib.sha1(whole[:end], usedforsecurity=False).digest()
        if same_entries(cut, cut):
            parse_index(cut)
        else:
            assert names_any(cut, {b"x" * 20})


def test_index_names_its_blobs_and_its_trees_and_no_other_objects(repository: Path) -> None:
    blob = bytes.fromhex(git(repository, "rev-parse", ":d/bb"))
    tree = bytes.fromhex(git(repository, "write-tree"))
    other = bytes.fromhex(git(repository, "hash-object", "-w", ".git/config"))
    whole = index(repository)
    assert names_any(whole, {blob, other})
    assert names_any(whole, {tree})
    assert names_any(whole, {other}) is is_sha256(repository)
    assert not names_any(whole, frozenset())
    assert names_any(whole[:-1], {other})


def test_index_whose_entries_are_in_another_file_may_name_anything(repository: Path) -> None:
    git(repository, "update-index", "--split-index")
    assert names_any(index(repository), {bytes(20)})
