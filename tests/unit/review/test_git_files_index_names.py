"""What a git index says is tracked, compared with git itself."""

import os
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from sandboxfs.review.git_files import GitIndex, UnreadableIndex, parse_index

ENVIRONMENT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}
NAMES = ["a", "a b", "d/e/f", "d/e/long" + "x" * 90, "d/other", "d0", "ü", "z" * 200]


def git(top: Path, *words: str) -> bytes:
    command = ["git", "-c", "core.quotePath=false", *words]
    return subprocess.run(command, cwd=top, env=ENVIRONMENT, capture_output=True, check=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return made(tmp_path)


def made(top: Path, *options: str) -> Path:
    git(top, "init", "-q", *options)
    for name in NAMES:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    git(top, "add", "-A")
    return top


def tracked(top: Path) -> frozenset[bytes]:
    return frozenset(git(top, "ls-files", "-z").split(b"\0")) - {b""}


def index_of(top: Path) -> bytes:
    return (top / ".git/index").read_bytes()


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_the_index_names_what_git_names(repository: Path, version: str) -> None:
    # Only an entry that needs it makes git write version 3.
    if version == "3":
        (repository / "later").touch()
        git(repository, "add", "-N", "later")
    else:
        git(repository, "update-index", "--index-version", version)
    assert index_of(repository)[7] == int(version)
    assert parse_index(index_of(repository)).files == tracked(repository)


def test_an_index_of_the_longer_hash_is_read(tmp_path: Path) -> None:
    top = made(tmp_path, "--object-format=sha256")
    assert parse_index(index_of(top)).files == tracked(top)
    git(top, "update-index", "--index-version", "4")
    assert parse_index(index_of(top)).files == tracked(top)


def test_an_index_with_extensions_and_without_a_checksum_is_read(repository: Path) -> None:
    git(repository, "commit", "-qm", "all")
    git(repository, "-c", "index.skipHash=true", "update-index", "--untracked-cache")
    assert parse_index(index_of(repository)).files == tracked(repository)


def test_all_below_a_directory_of_a_sparse_index_is_tracked(repository: Path) -> None:
    git(repository, "commit", "-qm", "all")
    git(repository, "sparse-checkout", "set", "--cone", "--sparse-index", "nothing")
    index = parse_index(index_of(repository))
    assert index.directories == {b"d"}
    assert index.tracks(b"d/e/f")
    assert index.tracks(b"a")
    assert not index.tracks(b"d0/x")


def test_a_split_index_is_not_guessed_at(repository: Path) -> None:
    git(repository, "update-index", "--split-index")
    with pytest.raises(UnreadableIndex):
        parse_index(index_of(repository))


def test_no_damage_is_taken_for_an_index(repository: Path) -> None:
    data = index_of(repository)
    for end in range(len(data) - 1):
        with pytest.raises(UnreadableIndex):
            parse_index(data[:end])
    with pytest.raises(UnreadableIndex):
        parse_index(b"DIRC" + b"\xff" * 200)


def test_an_index_of_nothing_tracks_nothing(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "read-tree", "--empty")
    assert parse_index(index_of(tmp_path)) == GitIndex()


def test_an_index_that_names_far_more_than_it_has_bytes_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In version 4 each name begins with the name before, so that names can grow without end.
    count, most = 6000, 1 << 20
    monkeypatch.setattr("sandboxfs.review.git_files._MOST_NAMES", most)
    entry = b"\0" * 24 + (0o100644).to_bytes(4, "big") + b"\0" * 32 + b"\0\0" + b"\0" + b"a\0"
    data = b"DIRC" + (4).to_bytes(4, "big") + count.to_bytes(4, "big") + entry * count + b"\0" * 20
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableIndex):
            parse_index(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * most
    finally:
        tracemalloc.stop()


def test_what_is_tracked_in_directories_takes_no_more_memory_than_its_names() -> None:
    files = frozenset(b"%d" % number + b"/d" * 2000 for number in range(50))
    tracemalloc.start()
    try:
        index = GitIndex(files)
        assert index.tracks_below(b"7/d/d")
        assert index.tracks_below(b"")
        assert not index.tracks_below(b"7/d/dd")
        assert not index.tracks_below(b"70")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
