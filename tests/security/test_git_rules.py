"""Is git usable in the view, and can nothing be planted that the git of the host would run?"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.security.conftest import Guarded
from tests.support import conditions
from tests.support.claims import fails_with
from tests.support.guarded import GuardedMount
from tests.support.mounted import run
from tests.support.syscalls import RENAME_EXCHANGE, renameat2

IDENTITY = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")


def git(folder: Path, *arguments: str, status: int | None = 0) -> str:
    return run("git", *IDENTITY, *arguments, cwd=folder, status=status)


@pytest.fixture
def repository(guarded: Guarded, tmp_path: Path) -> GuardedMount:
    """A view of a repository with one commit, a submodule-like `.git` file, and a hook."""
    conditions.require_tool("git")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    git(workspace, "init", "--quiet", "--initial-branch=main")
    (workspace / "file").write_text("text\n")
    git(workspace, "add", "file")
    git(workspace, "commit", "--quiet", "--message=first")
    (workspace / ".git" / "hooks").mkdir(exist_ok=True)
    (workspace / ".git" / "hooks" / "present").write_text("#!/bin/sh\n")
    (workspace / "module").mkdir()
    (workspace / "module" / ".git").write_text("gitdir: ../.git/modules/module\n")
    (workspace / ".git" / "modules" / "module").mkdir(parents=True)
    (workspace / ".git" / "modules" / "module" / "config").write_text("[core]\n")
    return guarded({})


PLANTS: dict[str, Callable[[Path], object]] = {
    "a new hook": lambda git: (git / "hooks" / "pre-commit").write_text("#!/bin/sh\n"),
    "a changed hook": lambda git: (git / "hooks" / "present").write_text("evil"),
    "a hook made executable": lambda git: os.chmod(git / "hooks" / "present", 0o755),
    "a hook as a symlink": lambda git: os.symlink("/bin/sh", git / "hooks" / "post-checkout"),
    "a hook as a hard link": lambda git: os.link(git / "HEAD", git / "hooks" / "pre-push"),
    "a hook moved in": lambda git: os.rename(git / "description", git / "hooks" / "pre-push"),
    "hooks moved away": lambda git: os.rename(git / "hooks", git / "hooks.old"),
    "hooks removed": lambda git: os.unlink(git / "hooks" / "present"),
    "hooks exchanged": lambda git: renameat2(
        os.fsencode(git / "hooks"), os.fsencode(git / "info"), RENAME_EXCHANGE
    ),
    "config changed": lambda git: (git / "config").open("a"),
    "config replaced": lambda git: os.rename(git / "HEAD", git / "config"),
    "config removed": lambda git: os.unlink(git / "config"),
    "config through a link": lambda git: os.link(git / "config", git / "config2"),
    "config of a worktree": lambda git: (git / "config.worktree").write_text("[core]\n"),
    "another common directory": lambda git: (git / "commondir").write_text("/tmp\n"),
    "config of a submodule": lambda git: (git / "modules" / "module" / "config").write_text("[core]\n"),
    "hooks of a submodule": lambda git: (git / "modules" / "module" / "hooks").mkdir(),
    "submodules moved away": lambda git: os.rename(git / "modules", git / "modules2"),
    "the repository moved away": lambda git: os.rename(git, git.parent / "git.old"),
    "the repository exchanged": lambda git: renameat2(
        os.fsencode(git), os.fsencode(git.parent / "module"), RENAME_EXCHANGE
    ),
    "a .git file replaced": lambda git: (git.parent / "module" / ".git").write_text("gitdir: /tmp\n"),
    "a .git file removed": lambda git: os.unlink(git.parent / "module" / ".git"),
    "a .git file moved away": lambda git: os.rename(
        git.parent / "module" / ".git", git.parent / "module" / "x"
    ),
    "a .git file moved over": lambda git: os.rename(git / "HEAD", git.parent / "module" / ".git"),
}


@pytest.mark.parametrize("how", PLANTS)
def test_what_the_host_would_run_cannot_be_planted(repository: GuardedMount, how: str) -> None:
    with fails_with(errno.EROFS):
        PLANTS[how](repository.root / ".git")


def test_git_works_in_the_view(repository: GuardedMount) -> None:
    view = repository.root
    git(view, "status")
    (view / "file").write_text("changed\n")
    (view / "new").write_text("new\n")
    git(view, "add", "file", "new")
    git(view, "commit", "--quiet", "--message=second")
    git(view, "switch", "--quiet", "--create", "side")
    (view / "new").write_text("side\n")
    git(view, "commit", "--quiet", "--all", "--message=third")
    git(view, "switch", "--quiet", "main")
    git(view, "merge", "--quiet", "--no-ff", "--message=merge", "side")
    git(view, "tag", "v1")
    (view / "file").write_text("for later\n")
    git(view, "stash")
    git(view, "stash", "pop")
    git(view, "gc", "--quiet")
    assert sorted(git(view, "log", "--format=%s").split()) == ["first", "merge", "second", "third"]
    git(view, "config", "core.pager", "evil", status=None)
    assert "evil" not in (view / ".git" / "config").read_text()


def test_a_repository_made_in_the_view_is_free(repository: GuardedMount) -> None:
    git(repository.root, "init", "--quiet", "fresh")
    fresh = repository.root / "fresh"
    git(fresh, "config", "core.pager", "less")
    (fresh / ".git" / "hooks").mkdir(exist_ok=True)
    (fresh / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    git(repository.root, "clone", "--quiet", ".", "copy")


def test_a_repository_is_not_freed_by_moving_the_directory_above_it(repository: GuardedMount) -> None:
    os.mkdir(repository.root / "folder")
    (repository.root / "module" / "x").write_text("x\n")
    os.rename(repository.root / "module", repository.root / "folder" / "module")
    with fails_with(errno.EROFS):
        (repository.root / "folder" / "module" / ".git").write_text("gitdir: /tmp\n")


def test_what_the_workspace_has_is_protected_at_its_place_after_it_moved_away(
    guarded: Guarded,
) -> None:
    mount = guarded(
        {"sub/.git/config": "[core]\n", "sub/.git/HEAD": "ref\n", "sub/x": "x\n", "mod/.git": "gitdir: y\n"}
    )
    os.rename(mount.root / "sub", mount.root / "away")
    os.rename(mount.root / "mod", mount.root / "gone")
    os.makedirs(mount.root / "sub" / ".git")
    os.mkdir(mount.root / "mod")
    # The workspace still has a repository there, so a commit would put these into it.
    with fails_with(errno.EROFS):
        (mount.root / "sub" / ".git" / "config").write_text("[core]\npager = evil\n")
    with fails_with(errno.EROFS):
        (mount.root / "mod" / ".git").write_text("gitdir: /tmp\n")


def test_a_repository_made_elsewhere_in_the_view_cannot_take_the_place_of_one_of_the_workspace(
    guarded: Guarded,
) -> None:
    mount = guarded({"sub/.git/config": "[core]\n", "sub/x": "x\n"})
    os.makedirs(mount.root / "new" / ".git" / "hooks")
    (mount.root / "new" / ".git" / "config").write_text("[core]\npager = evil\n")
    (mount.root / "new" / ".git" / "hooks" / "pre-commit").write_text("evil")
    os.rename(mount.root / "sub", mount.root / "away")
    with fails_with(errno.EROFS):
        os.rename(mount.root / "new", mount.root / "sub")
    os.mkdir(mount.root / "sub")
    with fails_with(errno.EROFS):
        os.rename(mount.root / "new" / ".git", mount.root / "sub" / ".git")


def test_a_repository_without_hooks_that_is_removed_and_made_anew_is_still_protected(
    guarded: Guarded,
) -> None:
    mount = guarded({"sub/.git/HEAD": "ref\n"})
    os.unlink(mount.root / "sub" / ".git" / "HEAD")
    os.rmdir(mount.root / "sub" / ".git")
    os.mkdir(mount.root / "sub" / ".git")
    with fails_with(errno.EROFS):
        (mount.root / "sub" / ".git" / "config").write_text("[core]\npager = evil\n")


def test_a_rule_of_the_user_lifts_a_built_in_one(guarded: Guarded) -> None:
    mount = guarded({".git/hooks/x": "x\n", ".git/config": "[core]\n"}, ".git/hooks=rw")
    (mount.root / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    with fails_with(errno.EROFS):
        (mount.root / ".git" / "config").write_text("[core]\n")


def test_hooks_of_the_workspace_still_run_in_the_view(repository: GuardedMount) -> None:
    hook = repository.lower / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho ran > ran\n")
    hook.chmod(hook.stat().st_mode | stat.S_IXUSR)
    repository.host_changed()
    repository.remount()
    git(repository.root, "commit", "--quiet", "--allow-empty", "--message=x")
    assert (repository.root / "ran").read_text() == "ran\n"
