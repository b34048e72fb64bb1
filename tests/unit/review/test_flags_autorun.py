"""What runs by itself: the table is well made, and each line of it is found wherever it lies."""

from functools import partial

import pytest

from sandboxfs.policy.model import Policy
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.flags import Look, flags, is_git_configuration, may_hold_what_runs, runs, table
from sandboxfs.review.summary import FlagContext
from tests.support.growth import grows_linearly

CONTEXT = FlagContext(b"/w", Policy())

PATTERNS = [pattern for line in table() for pattern in line.patterns.split()]


def test_each_line_has_patterns_a_reason_and_a_source() -> None:
    assert len(table()) > 90
    for line in table():
        assert all(part.strip() == part and part for part in line), line


def test_no_pattern_is_there_twice_or_has_more_wildcards_than_can_be_matched_quickly() -> None:
    assert len(PATTERNS) == len(set(PATTERNS))
    for pattern in PATTERNS:
        first, *rest = pattern.split("/")
        assert not rest or "*" not in first, pattern
        assert all(part == "**" or part.count("*") <= 1 for part in pattern.split("/")), pattern


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_is_found_at_any_depth_and_in_any_spelling(pattern: str) -> None:
    path = pattern.replace("**", "x/y").replace("*", "z").encode()
    shorter = pattern.removesuffix("**").replace("**/", "") + ("x" if pattern.endswith("**") else "")
    for sample in (path, b"deep/er/" + path, path.upper(), shorter.replace("*", "z").encode()):
        assert runs(sample), sample


@pytest.mark.parametrize(
    "path",
    [
        b"hie.yaml", b"analysis_options.yaml", b".bsp/sbt.json", b"app/tsconfig.json", b"a.nims",
        b".clj-kondo/hooks/a.clj", b"thesis/.latexmkrc", b".RData", b"renv/activate.R", b"phpstan.neon",
        b"infra/main_override.tf",
        b".local/bin/git", b".trunk/trunk.yaml", b"commitlint.config.js", b"hatch_build.py", b".env",
        b"docs/source/conf.py", b".github/CODEOWNERS", b"renovate.json", b"CMakePresets.json", b"pixi.toml",
    ],
)  # fmt: skip
def test_what_language_servers_checkers_and_bots_run_is_found(path: bytes) -> None:
    assert runs(path)


@pytest.mark.parametrize(
    "path",
    [
        b"Makefile", b"git/config", b"src/hooks/useThing.ts", b".git/index", b".git/HEAD",
        b".git/objects/ab/cd",
        b".vscode/x", b"my.envrc", b"claude.txt", b"docs/mise.md", b".github/README.md", b"gradle/libs.toml",
        b"config/settings.json", b"src/config", b"tests/test_conftest.py", b"package-lock.json", b"hooks.py",
    ],
)  # fmt: skip
def test_everyday_file_is_not_found(path: bytes) -> None:
    assert not runs(path)


@pytest.mark.parametrize(
    "text",
    [
        b"[core]\n\tfsmonitor = x\n",
        b"[CORE] fsmonitor=x",
        b"\xef\xbb\xbf[core]\nx",
        b'[user]name=x[include]path="x"',
        b'[includeIf "gitdir:/"]\npath = x\n',
        b'[filter "x"]\nclean = x\n',
        b"[core.sub]\nx = y\n",
        b"  [  core]",
    ],
)
def test_configuration_of_a_repository_is_found_in_any_spelling(text: bytes) -> None:
    for path in (b"store/config", b"x.git/CONFIG", b"a/config.worktree"):
        assert is_git_configuration(path, text), path
        assert flags(path, None, Look(0o100644, len(text), text)) == ["runs"]
    assert not is_git_configuration(b"store/config.txt", text)


@pytest.mark.parametrize("text", [b"", b"core = 1\n", b"[default]\nregion = x\n", b"[coreutils]\n"])
def test_other_files_called_config_are_not(text: bytes) -> None:
    assert not is_git_configuration(b"store/config", text)


@pytest.mark.parametrize("name", [b".vscode", b".husky", b".git/hooks", b"a/.github/workflows", b".claude"])
def test_directory_that_is_renamed_into_the_place_of_what_runs_is_flagged(name: bytes) -> None:
    side = Version(mode=0o040755, size=0, uid=0, gid=0, mtime_ns=0, ctime_ns=0, dev=1, ino=1, nlink=2)
    assert may_hold_what_runs(name)
    renamed = PathChange(name, ChangeKind.RENAMED, side, side, None, b"harmless", b"harmless")
    assert CONTEXT.flags(renamed) == ["runs"]
    assert CONTEXT.flags(PathChange(b"x", ChangeKind.RENAMED, side, side, None, b"y", b"y")) == []


@pytest.mark.parametrize("piece", [b".git/", b"hooks/", b".git/hooks/", b"a/", b".config/mise/", b"*"])
def test_time_of_looking_a_path_up_is_linear_in_the_path(piece: bytes) -> None:
    assert grows_linearly(lambda size: partial(runs, piece * size + b"x"), 1 << 8)
    assert grows_linearly(lambda size: partial(runs, b".git/" + piece * size + b"x"), 1 << 8)
