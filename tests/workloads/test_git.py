"""Does git work in the view as in any directory, on a repository of its own and on one of the workspace?"""

import os
from pathlib import Path
from typing import Protocol

import pytest

from tests.support import conditions
from tests.support.mount_driver import MountDriver
from tests.support.mounted import run
from tests.support.tree import Tree
from tests.workloads.conftest import Mount

FILES: Tree = {
    **{f"src/module{number}.py": f"value = {number}\n" * 20 for number in range(60)},
    **{f"docs/{number}/page.md": f"# Page {number}\n" for number in range(20)},
    "README": "readme\n",
}


@pytest.fixture(autouse=True)
def _git_settings() -> None:
    conditions.require_tool("git")
    Path(os.environ["HOME"], ".gitconfig").write_text(
        "[user]\n\tname = Test\n\temail = test@example.org\n"
        "[init]\n\tdefaultBranch = main\n[gc]\n\tauto = 0\n[commit]\n\tgpgSign = false\n"
        "[advice]\n\tdetachedHead = false\n[safe]\n\tdirectory = *\n"
    )


class Git(Protocol):
    def __call__(self, *arguments: str, status: int = ...) -> str: ...


def git_in(where: Path) -> Git:
    def git(*arguments: str, status: int = 0) -> str:
        return run("git", *arguments, cwd=where, status=status)

    return git


def make_repository(where: Path) -> Git:
    git = git_in(where)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    return git


def check_sound(git: Git) -> None:
    assert git("fsck", "--full", "--strict", "--no-progress") == ""
    assert git("status", "--porcelain") == ""


def live(git: Git, where: Path) -> None:
    """A working day: commits, branches, a rebase with a conflict, a stash, a worktree, collecting garbage."""
    # Commits on two branches that touch the same line.
    git("switch", "-q", "-c", "feature")
    for number in range(3):
        (where / f"src/module{number}.py").write_text(f"value = 'feature {number}'\n")
        git("commit", "-q", "-a", "-m", f"feature {number}")
    git("mv", "docs/3", "docs/three")
    git("commit", "-q", "-m", "move")
    git("switch", "-q", "main")
    assert (where / "src/module0.py").read_text() == "value = 0\n" * 20
    assert (where / "docs/3/page.md").exists()
    (where / "src/module2.py").write_text("value = 'main'\n")
    git("rm", "-q", "-r", "docs/5")
    git("commit", "-q", "-a", "-m", "main")
    # A rebase that stops at a conflict, is mended, and goes on.
    git("switch", "-q", "feature")
    assert "CONFLICT" in git("rebase", "main", status=1)
    (where / "src/module2.py").write_text("value = 'both'\n")
    git("add", "src/module2.py")
    git("-c", "core.editor=true", "rebase", "--continue")
    assert git("log", "--format=%s").splitlines()[:4] == ["move", "feature 2", "feature 1", "feature 0"]
    assert not (where / "docs/5").exists()
    # A stash, with a new file in it.
    (where / "README").write_text("unfinished\n")
    (where / "untracked").write_text("untracked\n")
    git("stash", "-q", "-u")
    assert (where / "README").read_text() == "readme\n"
    assert not (where / "untracked").exists()
    git("stash", "pop", "-q")
    assert (where / "untracked").read_text() == "untracked\n"
    git("add", "-A")
    git("commit", "-q", "-m", "finished")
    # Another worktree beside the files.
    git("worktree", "add", "-q", "tree", "main")
    other = git_in(where / "tree")
    assert other("status", "--porcelain") == ""
    (where / "tree/README").write_text("from the worktree\n")
    other("commit", "-q", "-a", "-m", "in the worktree")
    git("worktree", "remove", "tree")
    git("merge", "-q", "-m", "merge", "-X", "ours", "main")
    # Everything into one pack.
    git("reflog", "expire", "--expire=now", "--all")
    git("gc", "-q", "--prune=now", "--aggressive")
    git("tag", "done")
    git("clean", "-q", "-f", "-d", "-x")


def test_a_clone_in_the_view_lives_a_working_day(mount: Mount, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    sandbox = mount({})
    for name, content in FILES.items():
        path = origin / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content))
    make_repository(origin)
    git_in(sandbox.root)("clone", "-q", "--no-local", str(origin), "clone")
    git = git_in(sandbox.root / "clone")
    live(git, sandbox.root / "clone")
    check_sound(git)
    git("push", "-q", str(origin), "feature")
    assert git_in(origin)("log", "-1", "--format=%s", "feature") == git("log", "-1", "--format=%s")
    sandbox.remount()
    check_sound(git)


def test_a_repository_of_the_workspace_lives_a_working_day_in_the_view(mount: Mount) -> None:
    sandbox = mount(FILES)
    host = make_repository(sandbox.lower)
    sandbox.host_changed()
    git = git_in(sandbox.root)
    assert git("status", "--porcelain") == ""
    live(git, sandbox.root)
    check_sound(git)
    sandbox.remount()
    check_sound(git)
    check_host_knows_nothing(sandbox, host)


def check_host_knows_nothing(sandbox: MountDriver, host: Git) -> None:
    # Whatever git writes to look, it writes elsewhere: the workspace is compared to the last bit.
    assert host("--no-optional-locks", "branch", "--format=%(refname:short)").split() == ["main"]
    assert host("--no-optional-locks", "status", "--porcelain") == ""


def test_hard_linked_clones_and_shared_objects_work(mount: Mount) -> None:
    sandbox = mount(FILES)
    make_repository(sandbox.lower)
    sandbox.host_changed()
    git = git_in(sandbox.root)
    git("clone", "-q", "--local", ".", "linked")
    git("clone", "-q", "--shared", ".", "shared")
    for name in ("linked", "shared"):
        clone = git_in(sandbox.root / name)
        (sandbox.root / name / "README").write_text(name)
        clone("commit", "-q", "-a", "-m", name)
        clone("gc", "-q")
        check_sound(clone)
    assert git("fsck", "--full", "--no-progress") == ""


def test_a_patch_series_goes_out_and_comes_in_again(mount: Mount) -> None:
    sandbox = mount(FILES)
    make_repository(sandbox.lower)
    sandbox.host_changed()
    git, where = git_in(sandbox.root), sandbox.root
    for number in range(3):
        (where / "README").write_text(f"version {number}\n")
        (where / f"new{number}").write_bytes(os.urandom(3000))
        git("add", "-A")
        git("commit", "-q", "-m", f"version {number}")
    git("format-patch", "-q", "-o", "patches", "HEAD~3")
    tree = git("rev-parse", "HEAD^{tree}")
    git("reset", "-q", "--hard", "HEAD~3")
    run("sh", "-c", "git am -q patches/*", cwd=where)
    assert git("rev-parse", "HEAD^{tree}") == tree
    run("rm", "-rf", "patches", cwd=where)
    git("checkout", "-q", "--orphan", "empty")
    git("rm", "-q", "-rf", ".")
    assert os.listdir(where) == [".git"]
    git("checkout", "-q", "main")
    check_sound(git)
