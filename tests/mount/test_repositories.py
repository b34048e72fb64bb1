"""A repository's own directory in `commit` and `undo`: all of it or nothing, and never broken."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Mount
from tests.support.mount_driver import MountDriver, run_sandboxfs

pytestmark = pytest.mark.any_user

WHOLE = "a repository is taken back as a whole or not at all"
IDENTITY = ("-c", "user.name=N", "-c", "user.email=n@example.org")


def git(where: Path, *words: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "protocol.file.allow=always", *IDENTITY, "-C", str(where), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit_in(where: Path, name: str) -> None:
    (where / name).write_text(f"{name}\n")
    git(where, "add", name)
    git(where, "commit", "-m", name)


def make_repository(where: Path) -> None:
    where.mkdir(exist_ok=True, parents=True)
    git(where, "init", "-b", "main")
    commit_in(where, "first")


def sound(where: Path) -> bool:
    """Whether everything that the repository refers to is there."""
    git(where, "fsck", "--full", "--strict", "--no-dangling")
    git(where, "log", "--all")
    git(where, "status")
    return True


def review(mounted: MountDriver, *words: str) -> "subprocess.CompletedProcess[str]":
    done = run_sandboxfs(words[0], "-s", "test", *words[1:], state=mounted.state)
    mounted.host_changed()
    return done


@pytest.fixture
def repository(mount: Mount) -> Iterator[MountDriver]:
    """A mount of a workspace that is a repository with one commit."""
    mounted = mount({"other": "other\n"})
    make_repository(mounted.lower)
    mounted.host_changed()
    yield mounted
    # Looking at a repository changes its index.
    mounted.host_changed()


def committed(mounted: MountDriver) -> None:
    """Have the sandbox make a commit, and commit that."""
    commit_in(mounted.root, "second")
    done = review(mounted, "commit", "--yes", "--include-git")
    assert done.returncode == 0, done.stderr
    assert git(mounted.lower, "log", "--format=%s") == "second\nfirst"


def test_commit_in_a_repository_is_taken_back_whole_when_only_the_stat_cache_of_the_index_changed(
    repository: MountDriver,
) -> None:
    committed(repository)
    before = (repository.lower / ".git/index").read_bytes()
    git(repository.lower, "status")
    assert (repository.lower / ".git/index").read_bytes() != before
    done = review(repository, "undo", "--yes")
    assert done.returncode == 0, done.stderr
    assert git(repository.lower, "log", "--format=%s") == "first"
    assert sound(repository.lower)
    assert git(repository.root, "log", "--format=%s") == "second\nfirst"
    assert sound(repository.root)


def stage(workspace: Path) -> None:
    (workspace / "staged").write_text("staged\n")
    git(workspace, "add", "staged")


SINCE: dict[str, tuple[Callable[[Path], object], str]] = {
    "stage": (stage, ".git/index"),
    "branch": (lambda workspace: git(workspace, "branch", "keep"), ".git/logs/refs/heads/keep"),
    "tag": (lambda workspace: git(workspace, "tag", "v1"), ".git/refs/tags/v1"),
    "commit": (lambda workspace: commit_in(workspace, "third"), ".git/"),
    "collect": (lambda workspace: git(workspace, "gc"), ".git/"),
    "worktree": (lambda workspace: git(workspace, "worktree", "add", "-b", "w", "tree"), ".git/"),
}


@pytest.mark.parametrize("since", SINCE)
def test_repository_that_changed_since_is_not_taken_back_and_stays_sound(
    repository: MountDriver, since: str
) -> None:
    change, changed = SINCE[since]
    committed(repository)
    change(repository.lower)
    head = git(repository.lower, "rev-parse", "HEAD")
    done = review(repository, "undo", "--yes")
    assert done.returncode == 5
    assert f"at '.git': '{changed}" in done.stderr
    assert f"changed in the workspace since; {WHOLE}" in done.stderr
    assert git(repository.lower, "rev-parse", "HEAD") == head
    assert sound(repository.lower)
    # What is no part of the repository is taken back.
    assert not (repository.lower / "second").exists()


def test_repository_that_changed_in_the_sandbox_since_is_not_taken_back(repository: MountDriver) -> None:
    committed(repository)
    git(repository.root, "branch", "more")
    commit_in(repository.root, "third")
    done = review(repository, "undo", "--yes")
    assert done.returncode == 5
    assert "changed in the sandbox since; " + WHOLE in done.stderr
    assert sound(repository.lower)
    assert sound(repository.root)


def test_commits_are_taken_back_one_after_the_other(repository: MountDriver) -> None:
    committed(repository)
    git(repository.root, "branch", "side")
    commit_in(repository.root, "third")
    assert review(repository, "commit", "--yes", "--include-git").returncode == 0
    for number, left in (("2", "second\nfirst"), ("1", "first")):
        done = review(repository, "undo", "--yes", number)
        assert done.returncode == 0, done.stderr
        assert git(repository.lower, "log", "--format=%s") == left
        assert sound(repository.lower)
        # What comes back into the sandbox would be in the way of the next.
        assert review(repository, "discard", "--all", "--yes").returncode == 0


def test_each_repository_is_a_unit_of_its_own(repository: MountDriver) -> None:
    make_repository(repository.lower / "nested")
    make_repository(repository.lower / "quiet")
    repository.host_changed()
    commit_in(repository.root / "nested", "second")
    commit_in(repository.root / "quiet", "second")
    assert review(repository, "commit", "--yes", "--include-git").returncode == 0
    git(repository.lower / "nested", "tag", "v1")
    done = review(repository, "undo", "--yes")
    assert done.returncode == 5
    assert "at 'nested/.git': 'nested/.git/refs/tags/v1'" in done.stderr
    assert git(repository.lower / "nested", "log", "--format=%s") == "second\nfirst"
    assert git(repository.lower / "quiet", "log", "--format=%s") == "first"
    assert sound(repository.lower / "nested")
    assert sound(repository.lower / "quiet")


def test_bare_repository_is_a_unit(repository: MountDriver) -> None:
    git(repository.lower, "clone", "--bare", ".", "store")
    repository.host_changed()
    commit_in(repository.root, "second")
    git(repository.root, "push", "store", "main")
    assert review(repository, "commit", "--yes", "store").returncode == 0
    git(repository.lower / "store", "tag", "v1")
    done = review(repository, "undo", "--yes")
    assert done.returncode == 5
    assert "at 'store': 'store/refs/tags/v1'" in done.stderr
    assert sound_bare(repository.lower / "store")


def sound_bare(where: Path) -> bool:
    git(where, "fsck", "--full", "--strict", "--no-dangling")
    return git(where, "log", "--all", "--format=%s") == "second\nfirst"


@pytest.mark.parametrize("how", ["skip", "merge", "ours", "theirs"])
def test_repository_in_conflict_goes_in_as_a_whole_or_not_at_all(repository: MountDriver, how: str) -> None:
    commit_in(repository.root, "second")
    commit_in(repository.lower, "host")
    repository.host_changed()
    done = review(repository, "commit", "--yes", "--include-git", "--on-conflict", how)
    assert done.returncode == (5 if how == "merge" else 0), done.stderr
    assert sound(repository.lower)
    log = git(repository.lower, "log", "--format=%s")
    assert log == ("second\nfirst" if how == "ours" else "host\nfirst")
    objects = {path.name for path in (repository.lower / ".git/objects").glob("??/*")}
    theirs = git(repository.root, "rev-parse", "HEAD")[2:]
    assert (theirs in objects) == (how in ("ours", "theirs"))
    assert sound(repository.root)
    assert git(repository.root, "log", "--format=%s") == (
        "host\nfirst" if how == "theirs" else "second\nfirst"
    )


def test_naming_one_file_of_a_repository_takes_all_of_it(repository: MountDriver) -> None:
    commit_in(repository.root, "second")
    done = review(repository, "commit", "--yes", "--include-git", ".git/COMMIT_EDITMSG", ".git/refs")
    assert done.returncode == 0, done.stderr
    assert git(repository.lower, "log", "--format=%s") == "second\nfirst"
    assert sound(repository.lower)


def dangle(where: Path) -> str:
    """Make a commit that nothing refers to any more, and return its name."""
    git(where, "switch", "-c", "feature")
    commit_in(where, "lost")
    found = git(where, "rev-parse", "HEAD")
    git(where, "switch", "main")
    git(where, "branch", "-D", "feature")
    git(where, "reflog", "expire", "--expire=now", "--all")
    return found


NEEDED = {
    "branch": lambda where, commit: git(where, "branch", "mine", commit),
    "tag": lambda where, commit: git(where, "tag", "mine", commit),
    "tag of a blob": lambda where, commit: git(where, "tag", "mine", f"{commit}:lost"),
    "staged blob": lambda where, commit: git(where, "restore", "-s", commit, "--staged", "--", "lost"),
}


@pytest.mark.parametrize("need", NEEDED)
def test_objects_that_the_host_needs_by_now_are_not_taken_from_its_repository(
    repository: MountDriver, need: str
) -> None:
    commit = dangle(repository.lower)
    repository.host_changed()
    git(repository.root, "gc", "--prune=now")
    NEEDED[need](repository.lower, commit)
    done = review(repository, "commit", "--yes", "--include-git")
    assert done.returncode == 5
    assert "is in a repository that changed in the workspace since" in done.stderr
    assert sound(repository.lower)
    status = review(repository, "diff", "--include-git", "--json")
    assert "is in a repository that changed in the workspace since" in status.stdout


def test_branch_deleted_and_collected_in_the_sandbox_is_kept_where_the_host_has_another_on_it(
    repository: MountDriver,
) -> None:
    git(repository.lower, "branch", "feature", git(repository.lower, "rev-parse", "HEAD"))
    git(repository.lower, "switch", "feature")
    commit_in(repository.lower, "more")
    git(repository.lower, "switch", "main")
    repository.host_changed()
    for words in (
        ["branch", "-D", "feature"],
        ["reflog", "expire", "--expire=now", "--all"],
        ["gc", "--prune=now"],
    ):
        git(repository.root, *words)
    git(repository.lower, "branch", "mine", "feature")
    for how in ("fail", "skip"):
        done = review(repository, "commit", "--yes", "--include-git", "--on-conflict", how)
        assert done.returncode == (5 if how == "fail" else 0), done.stderr
        assert git(repository.lower, "log", "--format=%s", "mine") == "more\nfirst"
        assert sound(repository.lower)
    done = review(repository, "commit", "--yes", "--include-git", "--on-conflict", "ours")
    assert done.returncode == 0, done.stderr


def test_objects_that_nothing_needs_are_taken_from_a_repository_that_did_not_change(
    repository: MountDriver,
) -> None:
    dangle(repository.lower)
    repository.host_changed()
    git(repository.root, "gc", "--prune=now")
    done = review(repository, "commit", "--yes", "--include-git")
    assert done.returncode == 0, done.stderr
    assert sound(repository.lower)


def renew_index(where: Path) -> None:
    """Have `git status` write the index anew, with other times in it."""
    before = (where / ".git/index").read_bytes()
    os.utime(where / "first", (1, 1))
    git(where, "status")
    assert (where / ".git/index").read_bytes() != before


def test_commit_of_the_sandbox_is_no_conflict_with_a_look_at_the_repository(repository: MountDriver) -> None:
    commit_in(repository.root, "second")
    renew_index(repository.lower)
    done = review(repository, "commit", "--yes", "--include-git")
    assert done.returncode == 0, done.stderr
    assert git(repository.lower, "log", "--format=%s") == "second\nfirst"
    assert sound(repository.lower)


def test_objects_that_nothing_needs_are_taken_after_a_look_at_the_repository(
    repository: MountDriver,
) -> None:
    dangle(repository.lower)
    repository.host_changed()
    git(repository.root, "prune", "--expire=now")
    renew_index(repository.lower)
    done = review(repository, "commit", "--yes", "--include-git")
    assert done.returncode == 0, done.stderr
    assert sound(repository.lower)


def test_branch_is_taken_back_after_a_look_at_the_repository(repository: MountDriver) -> None:
    git(repository.root, "branch", "new")
    assert review(repository, "commit", "--yes", "--include-git").returncode == 0
    renew_index(repository.lower)
    done = review(repository, "undo", "--yes")
    assert done.returncode == 0, done.stderr
    assert git(repository.lower, "branch", "--format=%(refname:short)") == "main"
    assert sound(repository.lower)


def test_index_that_names_an_object_of_the_commit_keeps_it_from_being_taken_back(
    repository: MountDriver,
) -> None:
    (repository.root / "text").write_text("text\n")
    git(repository.root, "hash-object", "-w", "text")
    (repository.root / "text").unlink()
    assert review(repository, "commit", "--yes", "--include-git").returncode == 0
    (repository.lower / "text").write_text("text\n")
    git(repository.lower, "add", "text")
    done = review(repository, "undo", "--yes")
    assert done.returncode == 5
    assert WHOLE in done.stderr
    assert sound(repository.lower)


def test_discarding_one_file_of_a_repository_discards_all_of_it(repository: MountDriver) -> None:
    commit_in(repository.root, "second")
    done = review(repository, "discard", "--yes", ".git/objects")
    assert done.returncode == 0, done.stderr
    assert git(repository.root, "log", "--format=%s") == "first"
    assert sound(repository.root)
    # What is no part of the repository stays.
    assert (repository.root / "second").read_text() == "second\n"
