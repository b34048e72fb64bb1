"""What `diff` folds and a commit leaves out: ignored additions and git's own files, by the host's rules."""

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxfs.review.scan import survey
from sandboxfs.review.scope import Reason
from sandboxfs.upper.sandbox_layers import open_layers
from tests.support.committed import Committed
from tests.support.reviewed import in_short
from tests.support.tree import Tree

Make = Callable[[Tree], Committed]
IGNORING: Tree = {".gitignore": "*.log\nbuild/\n", "src/a": "1\n"}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Committed] = []

    def sandbox(tree: Tree) -> Committed:
        made.append(Committed(tmp_path / str(len(made)), tree))
        return made[-1]

    yield sandbox
    for one in made:
        one.abandon()


def taken(sandbox: Committed, *paths: str, **options: object) -> list[str]:
    return [in_short(finding) for finding in sandbox.plan(*paths, **options).findings]


def left(sandbox: Committed, *paths: str, **options: object) -> dict[str, int]:
    """How much is left out, by the directory under which it is told."""
    folded = sandbox.plan(*paths, **options).left_out
    return {os.fsdecode(line.directory): line.changes for line in folded}


def git(top: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run(["git", *words], cwd=top, env=environment, capture_output=True, check=True)


# Whose rules


def test_the_program_has_no_say_in_what_is_ignored(make: Make) -> None:
    sandbox = make({".git/info/exclude": "", "a": "1\n"})
    sandbox.write(".git/info/exclude", b"*\n!*/\n")
    sandbox.write(".gitignore", b"*\n")
    sandbox.write("new", b"1")
    sandbox.write("a", b"2\n")
    assert taken(sandbox) == ["added .gitignore", "modified a", "added new"]
    assert left(sandbox) == {".git": 1}


def test_the_rules_of_the_workspace_count_also_where_the_sandbox_removed_them(make: Make) -> None:
    sandbox = make({**IGNORING, ".git/info/exclude": "*.tmp\n", ".git/HEAD": "ref\n"})
    sandbox.unlink(".gitignore")
    for name in ("x.log", "x.tmp", "x.c"):
        sandbox.create(name)
    assert taken(sandbox) == ["deleted .gitignore", "added x.c"]
    assert left(sandbox) == {"": 2}


def test_the_users_own_rules_count_last(make: Make) -> None:
    sandbox = make({".gitignore": "!b.swp\n", "a": "1\n"})
    sandbox.create("a.swp")
    sandbox.create("b.swp")
    assert taken(sandbox, excludes="*.swp\n") == ["added b.swp"]
    assert taken(sandbox) == ["added a.swp", "added b.swp"]


def test_a_linked_work_tree_has_the_rules_of_its_repository(make: Make, tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    git(main, "init", "-q")
    git(main, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "none", "--allow-empty")
    (main / ".git/info").mkdir(exist_ok=True)
    (main / ".git/info/exclude").write_text("*.tmp\n")
    sandbox = make({"a": "1\n"})
    sandbox.host.rename(tmp_path / "kept")
    git(main, "worktree", "add", "-q", str(sandbox.host))
    sandbox.host_changed()
    sandbox.create("x.tmp")
    sandbox.create("x.c")
    assert taken(sandbox) == ["added x.c"]


def test_a_mountpoint_in_the_workspace_is_asked_for_no_rules(make: Make) -> None:
    sandbox = make({"mnt/.gitignore": "*\n"})
    sandbox.create("mnt/x")
    assert left(sandbox) == {"mnt": 1}
    with open_layers(replace(sandbox.paths, masked=frozenset({b"mnt"}))) as layers:
        assert sandbox.selected(survey(layers)).left == {}


# What is never left out


def test_only_additions_are_left_out(make: Make) -> None:
    sandbox = make({**IGNORING, "m.log": "1", "d.log": "1", "r.log": "12345", "t.log": "1", "c.log": "1"})
    sandbox.write("m.log", b"2")
    sandbox.unlink("d.log")
    sandbox.rename("r.log", "r2.log")
    sandbox.unlink("t.log")
    sandbox.symlink("src", "t.log")
    sandbox.chmod("c.log", 0o600)
    assert taken(sandbox) == [
        "mode c.log",
        "deleted d.log",
        "modified m.log",
        "renamed r.log -> r2.log",
        "type t.log",
    ]


def test_what_a_flag_is_raised_for_is_not_left_out(make: Make) -> None:
    sandbox = make({".gitignore": "*.sh\n.envrc\nbuild/\nlink\n", "a": "1\n"})
    sandbox.create("run.sh", b"#!/bin/sh\n", mode=0o755)
    sandbox.create("plain.sh", b"#!/bin/sh\n")
    sandbox.create(".envrc", b"x")
    sandbox.symlink("/etc/passwd", "link")
    sandbox.mkdir("build")
    sandbox.create("build/tool", mode=0o755)
    sandbox.create("build/tool.o")
    assert taken(sandbox) == [
        "added .envrc",
        "added build/",
        "added build/tool",
        "added link",
        "added run.sh",
    ]
    assert left(sandbox) == {"": 1, "build": 1}


def test_a_package_in_an_ignored_directory_is_never_taken_in_half(make: Make) -> None:
    sandbox = make({".gitignore": "node_modules\n", "a": "1\n"})
    sandbox.mkdir("node_modules")
    sandbox.mkdir("node_modules/tool")
    sandbox.create("node_modules/tool/cli.js", mode=0o755)
    sandbox.create("node_modules/tool/.travis.yml")
    sandbox.create("node_modules/tool/index.js")
    assert taken(sandbox) == []
    (line,) = sandbox.plan().left_out
    assert (line.changes, dict(line.flags)) == (3, {"executable": 1, "runs": 1})


def test_what_the_host_tracks_is_not_left_out(make: Make) -> None:
    sandbox = make({**IGNORING, "kept.log": "1", "build/kept": "1", "sub/a": "1"})
    for top in (sandbox.host, sandbox.host / "sub"):
        git(top, "init", "-q")
    (sandbox.host / "sub/in.log").write_text("1")
    git(sandbox.host / "sub", "add", "-f", "in.log")
    git(sandbox.host, "add", "-f", "kept.log", "build/kept")
    for name in ("kept.log", "build/kept", "sub/in.log"):
        (sandbox.host / name).unlink()
    (sandbox.host / "build").rmdir()
    sandbox.host_changed()
    sandbox.mkdir("build")
    for name in ("kept.log", "other.log", "build/kept", "build/other", "sub/in.log", "sub/out.log"):
        sandbox.create(name, b"2")
    assert taken(sandbox) == ["added build/", "added build/kept", "added kept.log", "added sub/in.log"]
    assert left(sandbox) == {"": 1, "build": 1, "sub": 1}


def test_nothing_is_left_out_where_the_index_cannot_be_read(make: Make) -> None:
    sandbox = make({**IGNORING, ".git/index": "no index"})
    sandbox.create("x.log")
    assert taken(sandbox) == ["added x.log"]


def test_what_is_named_is_taken_and_what_is_around_it_names_nothing(make: Make) -> None:
    sandbox = make(IGNORING)
    sandbox.create("src/x.log")
    sandbox.create("src/y.log")
    sandbox.mkdir("build")
    sandbox.mkdir("build/deep")
    sandbox.create("build/deep/object")
    sandbox.create("build/other")
    assert taken(sandbox, "src") == []
    assert taken(sandbox, "src/x.log") == ["added src/x.log"]
    assert taken(sandbox, "build/deep") == ["added build/", "added build/deep/", "added build/deep/object"]
    assert taken(sandbox, "build") == [
        "added build/",
        "added build/deep/",
        "added build/deep/object",
        "added build/other",
    ]
    assert len(taken(sandbox, ignored=True)) == 6


def test_what_something_taken_needs_is_taken(make: Make) -> None:
    sandbox = make(IGNORING)
    sandbox.create("src/x.log", b"1")
    sandbox.link("src/x.log", "src/name")
    sandbox.create("src/y.log", b"1")
    assert taken(sandbox) == ["added src/name", "added src/x.log"]
    assert left(sandbox) == {"src": 1}


def test_a_new_directory_of_nothing_but_ignored_files_stays_with_them(make: Make) -> None:
    sandbox = make(IGNORING)
    for directory in ("logs", "logs/old", "empty", "mixed"):
        sandbox.mkdir(directory)
    for name in ("logs/a.log", "logs/old/b.log", "mixed/a.log", "mixed/a.c"):
        sandbox.create(name)
    assert taken(sandbox) == ["added empty/", "added mixed/", "added mixed/a.c"]
    assert left(sandbox) == {"logs": 1, "logs/old": 1, "mixed": 1}


def test_a_file_that_the_host_made_too_is_no_conflict_as_long_as_it_is_ignored(make: Make) -> None:
    sandbox = make(IGNORING)
    sandbox.create("x.log", b"sandbox")
    (sandbox.host / "x.log").write_text("host")
    plan = sandbox.plan()
    assert (plan.conflicts, plan.left_out[0].conflicts) == ((), 1)


# After a commit


def test_ignored_files_stay_in_the_sandbox_and_are_taken_later(make: Make) -> None:
    sandbox = make(IGNORING)
    sandbox.create("x.log", b"1")
    sandbox.create("x.c", b"1")
    sandbox.commit()
    assert not (sandbox.host / "x.log").exists()
    assert sandbox.read("x.log") == b"1"
    assert taken(sandbox) == []
    sandbox.commit(ignored=True)
    assert (sandbox.host / "x.log").read_text() == "1"


def test_what_is_left_out_is_counted_once_and_without_implied_directories(make: Make) -> None:
    sandbox = make({**IGNORING, ".git/HEAD": "ref\n"})
    sandbox.mkdir(".git/objects")
    sandbox.create(".git/objects/one")
    sandbox.mkdir("build")
    sandbox.create("build/one")
    with sandbox.layers() as layers:
        selection = sandbox.selected(survey(layers))
        assert (selection.count(Reason.GIT), selection.count(Reason.IGNORED)) == (1, 1)
