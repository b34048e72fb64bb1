"""Changes that a rule holds, as people and programs meet them: held beside a mount, approved, rejected."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sandboxfs import Sandbox
from sandboxfs.errors import UsageError
from tests.mount.conftest import Mount
from tests.support.dialogue import Dialogue
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.placed import kill_daemon
from tests.support.tree import Tree, build

pytestmark = pytest.mark.any_user

TREE: Tree = {"kept/a": "1\n", "kept/b": "1\n", "free": "1\n"}
HOLD = ("--rule", "kept=hold")


def review(mount: MountDriver, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs(words[0], "-s", "test", *words[1:], state=mount.state)


def done(mount: MountDriver, *words: str) -> str:
    finished = review(mount, *words)
    assert finished.returncode == 0, finished.stderr
    mount.host_changed()
    return finished.stdout


def told(mount: MountDriver, *words: str) -> dict[str, object]:
    found: object = json.loads(done(mount, *words, "--json"))
    assert isinstance(found, dict)
    return found


def work(view: Path) -> None:
    (view / "kept/a").write_text("2\n")
    (view / "kept/b").unlink()
    (view / "kept/new").write_text("2\n")
    (view / "free").write_text("2\n")


def dialogue(mount: MountDriver, *words: str) -> Dialogue:
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(mount.state), "NO_COLOR": "1", "TERM": "dumb"}
    return Dialogue([sys.executable, "-m", "sandboxfs", *words, "-s", "test"], environment)


def names(mount: MountDriver) -> list[str]:
    return done(mount, "diff", "--name-status").splitlines()


def test_held_changes_stay_until_they_are_approved(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    assert names(mounted) == ["M\tfree", "M\tkept/a\t[held]", "D\tkept/b\t[held]", "A\tkept/new\t[held]"]
    answer = review(mounted, "commit", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert "committed 1 change" in answer.stderr
    assert "kept/a  [held by rule 'kept = hold' (--rule)]" in answer.stderr
    assert (mounted.lower / "free").read_text() == "2\n"
    assert (mounted.lower / "kept/a").read_text() == "1\n"
    assert (mounted.lower / "kept/b").exists()
    assert "approved 1 change" in review(mounted, "approve", "kept/a").stderr
    done(mounted, "commit", "--yes")
    assert (mounted.lower / "kept/a").read_text() == "2\n"
    assert names(mounted) == ["D\tkept/b\t[held]", "A\tkept/new\t[held]"]
    done(mounted, "commit", "--yes", "--approve")
    assert names(mounted) == []
    assert sorted(path.name for path in (mounted.lower / "kept").iterdir()) == ["a", "new"]


def test_a_commit_of_nothing_but_held_changes_says_so(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    (mounted.root / "kept/a").write_text("2\n")
    answer = review(mounted, "commit", "--yes")
    assert answer.returncode == 0
    assert "nothing to commit" in answer.stderr
    assert "kept/a  [held by rule" in answer.stderr


def test_what_is_held_survives_a_killed_daemon_and_another_mount(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    done(mounted, "approve", "kept/b")
    kill_daemon(mounted)
    expected = ["M\tfree", "M\tkept/a\t[held]", "D\tkept/b", "A\tkept/new\t[held]"]
    assert names(mounted) == expected
    mounted.start()
    assert names(mounted) == expected


def test_held_changes_are_listed_by_rule(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD, "--rule", "free=hold")
    work(mounted.root)
    assert done(mounted, "approve").splitlines() == [
        "held by rule 1: 'kept = hold' (--rule)",
        "  M kept/a",
        "  D kept/b",
        "  A kept/new",
        "held by rule 2: 'free = hold' (--rule)",
        "  M free",
    ]
    found = told(mounted, "approve")
    assert found["held"] == [
        {
            "number": 1,
            "rule": "kept = hold",
            "source": "--rule",
            "paths": ["kept/a", "kept/b", "kept/new"],
        },
        {"number": 2, "rule": "free = hold", "source": "--rule", "paths": ["free"]},
    ]
    assert told(mounted, "approve", "--rule", "1")["approved"] == ["kept/a", "kept/b", "kept/new"]
    after = told(mounted, "approve", "--all")
    assert (after["approved"], after["held"]) == (["free"], [])
    assert "nothing is held" in review(mounted, "approve").stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["approve", "--rule", "2"], "no rule 2 holds changes"),
        (["approve", "--rule", "0"], "no rule 0 holds changes"),
        (["reject", "--rule", "2", "--yes"], "no rule 2 holds changes"),
        (["approve", "free"], "nothing is held at 'free'"),
        (["reject", "free", "--yes"], "nothing is held at 'free'"),
        (["approve", "kept/a", "free"], "nothing is held at 'free'"),
        (["approve", "kept/a", "--all"], "name paths, --rule or --all"),
        (["reject"], "name paths, --rule or --all"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_approved(
    mount: Mount, words: list[str], expected: str
) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    answer = review(mounted, *words)
    assert answer.returncode == 2
    assert expected in answer.stderr
    assert len(names(mounted)) == 4
    assert not (mounted.state / "sandboxes/test/approvals.json").exists()


def test_rejected_changes_are_dropped_and_can_be_brought_back(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    answer = review(mounted, "reject", "kept/a")
    assert answer.returncode == 2
    assert "without being asked to by a person" in answer.stderr
    assert told(mounted, "reject", "kept/a", "--dry-run")["counts"] == {"modified": 1}
    assert (mounted.root / "kept/a").read_text() == "2\n"
    assert told(mounted, "reject", "kept/a", "--yes")["counts"] == {"modified": 1}
    assert (mounted.root / "kept/a").read_text() == "1\n"
    done(mounted, "reject", "--all", "--yes")
    assert names(mounted) == ["M\tfree"]
    done(mounted, "undo", "--yes")
    assert names(mounted) == ["M\tfree", "D\tkept/b\t[held]", "A\tkept/new\t[held]"]


def test_a_person_is_asked_about_each_held_change(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    with dialogue(mounted, "commit") as talk:
        shown = talk.answer("Commit this hunk", "y")
        assert "held by rule 'kept = hold'" in shown
        assert "+2" in shown
        talk.answer("Commit this deletion", "n")
        talk.answer("Commit this addition", "y")
        plan = talk.answer("Commit to", "y")
        assert "kept/b  [held by rule" in plan
        talk.finish()
        assert talk.process.returncode == 0
    mounted.host_changed()
    assert (mounted.lower / "free").read_text() == "2\n"
    assert (mounted.lower / "kept/a").read_text() == "2\n"
    assert names(mounted) == ["D\tkept/b\t[held]"]


def test_picking_a_hunk_approves_it_and_the_rest_stays_held(mount: Mount) -> None:
    mounted = mount({"kept/text": "".join(f"{number}\n" for number in range(40))}, *HOLD)
    text = (mounted.root / "kept/text").read_text()
    (mounted.root / "kept/text").write_text("first\n" + text + "last\n")
    with dialogue(mounted, "commit", "-p") as talk:
        talk.answer("(1/2) Commit this hunk", "y")
        talk.answer("(2/2) Commit this hunk", "n")
        talk.finish()
        assert talk.process.returncode == 0
    mounted.host_changed()
    assert (mounted.lower / "kept/text").read_text() == "first\n" + text
    assert names(mounted) == ["M\tkept/text\t[held]"]


def test_a_hunk_that_is_named_is_approved_and_the_rest_stays_held(mount: Mount) -> None:
    mounted = mount({"kept/text": "".join(f"{number}\n" for number in range(40))}, *HOLD)
    text = (mounted.root / "kept/text").read_text()
    (mounted.root / "kept/text").write_text("first\n" + text + "last\n")
    changes = told(mounted, "diff")["changes"]
    assert isinstance(changes, list)
    done(mounted, "commit", "--yes", "--hunk", changes[0]["hunks"][1]["id"])
    assert (mounted.lower / "kept/text").read_text() == text + "last\n"
    assert names(mounted) == ["M\tkept/text\t[held]"]


def test_documents_tell_why_a_change_is_held(mount: Mount) -> None:
    mounted = mount({"d/a": "1\n", "free": "1\n"}, "--rule", "e=hold")
    (mounted.root / "d").rename(mounted.root / "e")
    (mounted.root / "free").write_text("2\n")
    rule = {"rule": "e = hold", "source": "--rule", "waits_for": None}
    changes = told(mounted, "diff")["changes"]
    assert isinstance(changes, list)
    assert {one["path"]: one["held"] for one in changes} == {"e": rule, "free": None}
    assert told(mounted, "status")["held"] == 1
    plan = told(mounted, "commit", "--dry-run")
    assert plan["held"] == [{"path": "e"} | rule]
    assert "1 held besides" in done(mounted, "status")


def test_a_revision_is_the_same_before_and_after_an_approval(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    seen = done(mounted, "diff", "--revision").strip()
    done(mounted, "approve", "--all")
    assert done(mounted, "diff", "--revision").strip() == seen
    done(mounted, "commit", "--yes", "--if-match", seen)
    assert names(mounted) == []


def test_an_archive_brings_no_approvals_along(mount: Mount, tmp_path: Path) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    done(mounted, "approve", "--all")
    assert "[held]" not in "".join(names(mounted))
    mounted.stop()
    done(mounted, "export", str(tmp_path / "box.tar"))
    words = ("import", str(tmp_path / "box.tar"), str(mounted.lower), "--name", "again")
    assert run_sandboxfs(*words, state=mounted.state).returncode == 0
    again = run_sandboxfs("diff", "-s", "again", "--name-status", state=mounted.state)
    assert again.stdout.splitlines() == [
        "M\tfree",
        "M\tkept/a\t[held]",
        "D\tkept/b\t[held]",
        "A\tkept/new\t[held]",
    ]


# Rules of a session


def test_what_a_session_holds_is_held_at_once_and_after_it(mount: Mount) -> None:
    mounted = mount(TREE)
    work(mounted.root)
    (mounted.root / "free").write_text("3\n")
    assert "[held]" not in "".join(names(mounted))
    assert "'./kept = hold' decides first" in done(mounted, "allow", str(mounted.lower / "kept"), "hold")
    expected = ["M\tfree", "M\tkept/a\t[held]", "D\tkept/b\t[held]", "A\tkept/new\t[held]"]
    assert names(mounted) == expected
    assert "held by rule './kept = hold' (runtime)" in review(mounted, "commit", "--dry-run").stdout
    kill_daemon(mounted)
    assert names(mounted) == expected
    mounted.start()
    assert names(mounted) == expected
    done(mounted, "allow", str(mounted.lower / "kept"), "rw")
    assert "[held]" not in "".join(names(mounted))


def test_a_session_lets_through_what_a_rule_holds_until_it_ends(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    (mounted.root / "kept/a").write_text("2\n")
    done(mounted, "allow", str(mounted.lower / "kept/a"), "rw")
    assert names(mounted) == ["M\tkept/a"]
    mounted.stop()
    mounted.start()
    assert names(mounted) == ["M\tkept/a\t[held]"]


def test_why_and_rules_tell_what_is_held(mount: Mount, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[[rule]]\npath = "free"\nmode = "rw"\nhold = ["delete", "overwrite"]\n')
    mounted = mount(TREE, "--hold", "kept", "--config", str(config))
    told_why = done(mounted, "why", str(mounted.lower / "kept/a"), "write")
    assert "write allowed for 'kept/a': held by rule 'kept = hold' (--rule)" in told_why
    assert "it happens in the sandbox, and commit leaves it out until a person approves it" in told_why
    assert "'approve'" in told_why
    assert "where the workspace has the file" in done(mounted, "why", str(mounted.lower / "free"), "delete")
    assert "held" not in done(mounted, "why", str(mounted.lower / "free"), "read")
    assert "rw, hold delete+overwrite" in done(mounted, "rules")
    shown = tomllib.loads((mounted.root / ".sandboxfs/policy").read_text())
    assert {"path": "free", "mode": "rw", "hold": ["delete", "overwrite"]} in shown["rule"]


# Programs, and their runs


def test_a_program_in_the_view_cannot_approve(mount: Mount) -> None:
    mounted = mount(TREE, *HOLD)
    work(mounted.root)
    environment = os.environ | {"SANDBOXFS_STATE_DIR": str(mounted.state)}
    for words in (["approve", "--all"], ["reject", "--all", "--yes"], ["commit", "--approve", "--yes"]):
        answer = subprocess.run(
            ["sandboxfs", "run", "-s", "test", "--quiet", "--", sys.executable, "-m", "sandboxfs", *words],
            env=environment,
            cwd=mounted.lower,
            capture_output=True,
            text=True,
            check=False,
        )
        assert answer.returncode != 0, answer
    attempt = (
        f"rm -f {mounted.state}/sandboxes/test/session-rules.json; "
        f"echo '{{}}' > {mounted.state}/sandboxes/test/approvals.json"
    )
    subprocess.run(
        ["sandboxfs", "run", "-s", "test", "--quiet", "--", "sh", "-c", attempt],
        env=environment,
        cwd=mounted.lower,
        capture_output=True,
        check=False,
    )
    assert not (mounted.state / "sandboxes/test/approvals.json").exists()
    assert len([name for name in names(mounted) if "[held]" in name]) == 3


def test_a_run_tells_what_is_held_and_its_commit_leaves_it_out(tmp_path: Path) -> None:
    workspace = build(tmp_path / "app", TREE)
    report = tmp_path / "report.json"
    words: list[str | Path] = ["run", "--workspace", workspace, "--hold", "kept", "--commit"]
    words += ["--json", report, "--", "sh", "-c", "echo 2 > kept/a; echo 2 > free"]
    answer = run_sandboxfs(*words, state=tmp_path / "state")
    assert answer.returncode == 0, answer.stderr
    assert "kept/a" in answer.stderr
    assert "[held]" in answer.stderr
    assert "not committed until approved" in answer.stderr
    assert (workspace / "free").read_text() == "2\n"
    assert (workspace / "kept/a").read_text() == "1\n"
    changes = json.loads(report.read_text())["sandboxes"][0]["changes"]
    assert {one["path"]: one["held"] and one["held"]["rule"] for one in changes} == {
        "free": None,
        "kept/a": "kept = hold",
    }
    removed = run_sandboxfs("rm", "app", state=tmp_path / "state")
    assert removed.returncode == 2
    assert "holds 1 change" in removed.stderr


def test_git_s_own_files_are_approved_as_they_are_committed(mount: Mount) -> None:
    tree: Tree = {".git/HEAD": "ref: refs/heads/main\n", ".git/description": "1\n", "a": "1\n"}
    mounted = mount(tree, "--hold", ".git/description")
    (mounted.root / ".git/description").write_text("2\n")
    (mounted.root / ".git/other").write_text("2\n")
    assert review(mounted, "commit", "--yes", "--include-git").returncode == 0
    assert not (mounted.lower / ".git/other").exists()
    done(mounted, "approve", ".git/description")
    done(mounted, "commit", "--yes", "--include-git")
    assert (mounted.lower / ".git/description").read_text() == "2\n"
    assert (mounted.lower / ".git/other").read_text() == "2\n"


def test_held_changes_are_approved_and_rejected_from_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXFS_STATE_DIR", str(tmp_path / "state"))
    workspace = build(tmp_path / "app", TREE)
    with Sandbox(workspace, rules=["kept=hold"]) as sandbox:
        sandbox.run(["sh", "-c", "echo 2 > kept/a; rm kept/b; echo 2 > kept/new; echo 2 > free"], check=True)
        found = {change.path: change.held for change in sandbox.changes()}
        rule = {"rule": "kept = hold", "source": "--rule", "waits_for": None}
        assert found == {"free": None, "kept/a": rule, "kept/b": rule, "kept/new": rule}
        sandbox.commit()
        assert (workspace / "free").read_text() == "2\n"
        assert (workspace / "kept/a").read_text() == "1\n"
        with pytest.raises(UsageError, match="nothing is held at 'free'"):
            sandbox.approve("free")
        sandbox.approve("kept/a")
        sandbox.commit()
        assert (workspace / "kept/a").read_text() == "2\n"
        sandbox.reject("kept/b")
        assert [change.path for change in sandbox.changes()] == ["kept/new"]
        sandbox.commit(approve=True)
        assert (workspace / "kept/new").exists()
