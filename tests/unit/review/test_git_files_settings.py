"""What the configuration of the host's own repository names is marked where a sandbox changes it."""

from pathlib import Path

import pytest

from sandboxfs.policy.model import Policy
from sandboxfs.review.flags import Flag
from sandboxfs.review.git_files import NamedByGit, named_by_git
from sandboxfs.review.summary import FlagContext
from tests.support.reviewed import Stored
from tests.support.tree import Tree


def configured(root: Path, *lines: str) -> NamedByGit:
    (root / ".git").mkdir(exist_ok=True)
    (root / ".git/config").write_text("\n".join(lines) + "\n")
    return named_by_git(bytes(root))


@pytest.mark.parametrize(
    ("section", "setting"),
    [
        ("[core]", "fsmonitor = tools/x"),
        ("[core]", "attributesFile = tools/x"),
        ("[core]", "sshCommand = sh ./tools/x -v"),
        ('[filter "f"]', "clean = \"sh -c 'tools/x' %f\""),
        ('[filter "f"]', "smudge = tools/../tools/x"),
        ('[diff "d"]', "command = tools/x"),
        ('[diff "d"]', "textconv = python tools/x"),
        ('[merge "m"]', "driver = tools/x %O %A %B"),
        ("[alias]", "st = !tools/x"),
        ("[credential]", 'helper = "!tools/x"'),
        ("[include]", "path = ../tools/x"),
        ('[includeIf "gitdir:/"]', "path = ../tools/x"),
    ],
)
def test_what_a_setting_names_is_found(tmp_path: Path, section: str, setting: str) -> None:
    named = configured(tmp_path, section, f"\t{setting}")
    assert named.has(b"tools/x")
    assert not named.has(b"tools/y")
    assert named.any_below(b"tools")


def test_what_lies_in_a_named_directory_of_hooks_is_found(tmp_path: Path) -> None:
    for text in ("scripts/hooks", "./scripts/hooks/", str(tmp_path / "scripts/hooks")):
        named = configured(tmp_path, f"[core]hooksPath={text}")
        assert named.has(b"scripts/hooks/pre-commit")
        assert not named.has(b"scripts/other")


def test_nothing_outside_of_the_workspace_is_named(tmp_path: Path) -> None:
    lines = (
        "[core]",
        "hooksPath = ../hooks",
        "sshCommand = /usr/bin/ssh -i ~/.ssh/id",
        "[user]",
        "name = src",
    )
    named = configured(tmp_path, *lines)
    assert named == NamedByGit()


def test_a_command_of_gits_own_names_no_file(tmp_path: Path) -> None:
    assert configured(tmp_path, "[alias]", "st = log src", "[credential]", "helper = store") == NamedByGit()


def test_an_included_configuration_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "team.config").write_text("[core]\nhooksPath = hooks\n[include]\npath = team.config\n")
    named = configured(tmp_path, "[include]", "path = ../team.config")
    assert named.has(b"team.config")
    assert named.has(b"hooks/pre-push")


def test_a_linked_work_tree_has_the_configuration_of_its_repository(tmp_path: Path) -> None:
    tree, own = tmp_path / "tree", tmp_path / "main/.git/worktrees/tree"
    tree.mkdir()
    own.mkdir(parents=True)
    (own / "commondir").write_text("../..\n")
    (tmp_path / "main/.git/config").write_text("[core]\nhooksPath = tools\n")
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert named_by_git(bytes(tree)).has(b"tools/pre-commit")


def test_a_change_of_what_the_hosts_configuration_names_is_marked(tmp_path: Path) -> None:
    config = '[core]\nhooksPath = tools/hooks\n[filter "f"]\nclean = bin/clean %f\n'
    tree: Tree = {".git/config": config, "tools/hooks/pre-commit": "a\n", "bin/clean": "a\n", "src": "a\n"}
    sandbox = Stored(tmp_path, tree)
    try:
        sandbox.write("tools/hooks/pre-commit", b"b\n")
        sandbox.write("bin/clean", b"b\n")
        sandbox.write("src", b"b\n")
        # What the view's configuration says counts for nothing.
        sandbox.write(".git/config", b"[core]\nhooksPath = none\n")
        raised = FlagContext(bytes(sandbox.host), Policy()).flags
        found = [finding for finding in sandbox.findings() if not finding.is_dir]
        marked = {finding.path for finding in found if Flag.RUNS in raised(finding)}
        assert marked == {b".git/config", b"bin/clean", b"tools/hooks/pre-commit"}
        assert len(found) == 4
    finally:
        sandbox.abandon()


def test_a_tab_in_a_value_is_read_as_each_version_of_git_does(tmp_path: Path) -> None:
    named = configured(tmp_path, "[core]", "hooksPath = my\thooks")
    assert named.directories == {b"my\thooks", b"my hooks"}
