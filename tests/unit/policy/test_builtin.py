"""The built-in rules protect the workspace's repositories and leave new ones alone."""

import subprocess
from pathlib import Path

import pytest

from sandboxfs.policy.builtin import BUILT_IN, PRESETS, Preset
from sandboxfs.policy.config import UserConfig
from sandboxfs.policy.explain import decide
from sandboxfs.policy.model import Mode, Policy, RuleCondition
from sandboxfs.policy.sources import assemble
from tests.support import conditions

POLICY = Policy(BUILT_IN)


def nothing_exists(path: str, needs: RuleCondition) -> bool:
    return False


@pytest.mark.parametrize(
    "path",
    [
        ".git/hooks",
        ".git/hooks/",
        ".git/hooks/pre-commit",
        "lib/x/.git/hooks/post-checkout",
        ".git/config",
        ".git/config.worktree",
        ".git/commondir",
        "sub/.git",
        ".git/modules/sub/config",
        ".git/modules/group/sub/hooks/pre-push",
        ".git/modules/a/modules/b/config",
        ".git/modules/sub/commondir",
        ".git/worktrees/one/commondir",
        ".git/worktrees/one/config.worktree",
    ],
)
def test_what_names_programs_for_git_is_read_only_in_repositories_of_the_workspace(path: str) -> None:
    assert decide(POLICY, path).mode is Mode.RO
    assert decide(POLICY, path, exists=nothing_exists).mode is Mode.RW


@pytest.mark.parametrize(
    "path",
    [
        ".git/",
        ".git/HEAD",
        ".git/index",
        ".git/index.lock",
        ".git/config.lock",
        ".git/objects/ab/cdef",
        ".git/refs/heads/config",
        ".git/refs/heads/hooks/x",
        ".git/logs/HEAD",
        ".git/info/exclude",
        ".git/rebase-merge/git-rebase-todo",
        ".git/modules/sub/index",
        ".git/worktrees/one/HEAD",
        "hooks/x",
        "config",
        ".gitconfig",
        ".github/config",
    ],
)
def test_what_commits_and_branches_need_stays_writable(path: str) -> None:
    assert decide(POLICY, path).mode is Mode.RW


def test_a_git_file_that_is_in_the_workspace_is_read_only_and_a_git_directory_is_not() -> None:
    assert decide(POLICY, "sub/.git").mode is Mode.RO
    assert decide(POLICY, "sub/.git/").mode is Mode.RW
    asked = []

    def exists(path: str, needs: RuleCondition) -> bool:
        asked.append((path, needs))
        return False

    assert decide(POLICY, "sub/.git", exists=exists).mode is Mode.RW
    assert asked == [("sub/.git", RuleCondition.ENTRY)]


def test_everything_git_itself_writes_while_it_commits_is_writable(tmp_path: Path) -> None:
    """Every path that real commands change in a repository, found by comparing before and after."""
    conditions.require_tool("git")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]

    def run(*arguments: str) -> None:
        subprocess.run([*git, *arguments], check=True, capture_output=True)

    def seen() -> dict[str, bytes]:
        files = (path for path in tmp_path.rglob("*") if path.is_file())
        return {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}

    run("init", "-b", "main")
    before = seen()
    for number in range(2):
        (tmp_path / "a").write_text(str(number))
        run("add", "a")
        run("commit", "-m", "x")
        run("switch", "-c", f"branch{number}")
    run("tag", "v1")
    run("stash", "list")
    run("rebase", "main")
    run("worktree", "add", "side", "main")
    run("gc")
    changed = {path for path, content in seen().items() if before.get(path) != content}
    in_workspace = set(before) | {str(Path(path).parent) for path in before}

    def exists(path: str, needs: RuleCondition) -> bool:
        return (path if needs is RuleCondition.ENTRY else str(Path(path).parent)) in in_workspace

    assert any(path.startswith(".git/worktrees/side/") for path in changed)
    assert "side/.git" in changed
    refused = [path for path in changed if decide(POLICY, path, exists=exists).mode is not Mode.RW]
    assert refused == []
    assert decide(POLICY, ".git/config", exists=exists).mode is Mode.RO


def test_each_preset_is_what_it_is_called() -> None:
    assert set(PRESETS) == set(Preset)
    made = {preset: assemble("/srv/app", UserConfig(), preset=preset).policy for preset in Preset}
    assert decide(made[Preset.READ_ONLY], "a").mode is Mode.RO
    assert decide(made[Preset.WORKSPACE_WRITE], "a").mode is Mode.RW
    assert decide(made[Preset.WORKSPACE_WRITE], ".git/config").mode is Mode.RO
    assert decide(made[Preset.FULL_ACCESS], ".git/config").mode is Mode.RW
    assert str(decide(made[Preset.READ_ONLY], "a").reading.source) == "--preset read-only"
