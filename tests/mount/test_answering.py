"""Can a person, and a program, answer from the command line what a program in the view waits for?"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import pytest

from tests.mount.conftest import Mount
from tests.support.asked import PATIENCE, output, soon, started
from tests.support.dialogue import CTRL_D, Dialogue
from tests.support.mount_driver import MountDriver, run_sandboxfs
from tests.support.tree import Tree

pytestmark = pytest.mark.any_user

TREE: Tree = {
    ".env": "SECRET=1\n\x1b[2Jhidden \u202edesrever\n",
    ".env.local": "SECRET=2\n",
    "config/.env": "SECRET=3\n",
}
ASK = "--ask", ".env*"


class Waiting(TypedDict):
    id: int
    path: str
    remaining: float | None


Granted = TypedDict(
    "Granted",
    {"id": int, "decision": str, "for": str, "path": str, "remaining": float | None, "reason": str | None},
)


class Listed(TypedDict):
    """The result of a verb."""

    questions: list[Waiting]
    followers: int
    grants: list[Granted]
    revoked: list[Granted]


def sandboxfs(view: MountDriver, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_sandboxfs(*words, "-s", "test", state=view.state)


def told(view: MountDriver, *words: str) -> Listed:
    done = sandboxfs(view, *words, "--json")
    assert done.returncode == 0, done.stderr
    found: Listed = json.loads(done.stdout)
    return found


def environment(view: MountDriver) -> dict[str, str]:
    return os.environ | {"SANDBOXFS_STATE_DIR": str(view.state), "TERM": "dumb"}


class Stream:
    """A program that follows the questions by the command."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def next(self, event: str) -> Mapping[str, object]:
        assert self.process.stdout is not None
        found: dict[str, object] = json.loads(self.process.stdout.readline())
        assert (found["event"], found["version"]) == (event, 1)
        return found


@contextmanager
def following(view: MountDriver) -> Iterator[Stream]:
    command = [sys.executable, "-m", "sandboxfs", "asks", "-s", "test", "--follow", "--json"]
    with subprocess.Popen(command, env=environment(view), stdout=subprocess.PIPE, text=True) as process:
        try:
            while told(view, "asks")["followers"] == 0:
                assert process.poll() is None
            yield Stream(process)
        finally:
            process.kill()


@contextmanager
def prompted(view: MountDriver) -> Iterator[Dialogue]:
    command = [sys.executable, "-m", "sandboxfs", "asks", "-s", "test", "--follow"]
    with Dialogue(command, environment(view)) as dialogue:
        dialogue.expect("Ctrl-C leaves\n")
        yield dialogue


def test_a_program_follows_and_answers_and_takes_back(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    nobody = sandboxfs(view, "asks")
    assert "nothing is asked" in nobody.stderr
    assert "nobody follows" in nobody.stderr
    with following(view) as stream:
        with started("cat", ".env", cwd=view.root) as program:
            question = stream.next("question")
            assert (question["path"], question["access"]) == (".env", "read")
            listed = sandboxfs(view, "asks").stdout
            assert f"cat[{program.pid}]" in listed
            assert ".env* = ask" in listed
            # The clock runs on for programs.
            (waiting,) = told(view, "asks")["questions"]
            assert waiting["remaining"] is not None
            done = sandboxfs(view, "answer", str(question["id"]), "allow", "--for", "path", "--during", "1h")
            assert done.returncode == 0, done.stderr
            assert output(program).startswith("SECRET=1")
        over = stream.next("over")
        assert (over["id"], over["outcome"]) == (question["id"], "allowed")
        late = sandboxfs(view, "answer", str(question["id"]), "deny", "--json")
        assert late.returncode == 2
        assert json.loads(late.stderr)["error"]["over"]["outcome"] == "allowed"
        (grant,) = told(view, "grants")["grants"]
        assert (grant["for"], grant["path"]) == ("path", ".env")
        assert grant["remaining"] is not None
        assert grant["remaining"] <= 3600
        assert "allow read" in sandboxfs(view, "grants").stdout
        assert (view.root / ".env").read_text().startswith("SECRET=1")
        assert f"grant {grant['id']}" in sandboxfs(view, "revoke", str(grant["id"])).stdout
        assert told(view, "grants")["grants"] == []
        assert sandboxfs(view, "revoke", str(grant["id"])).returncode == 2
        with started("cat", ".env", cwd=view.root) as program:
            question = stream.next("question")
            sandboxfs(view, "answer", str(question["id"]), "deny", "--reason", "use config.example")
            assert "Permission denied" in output(program)
        assert stream.next("over")["reason"] == "use config.example"
    assert "use config.example" in (view.root / ".sandboxfs/denials").read_text()


def test_when_the_only_person_is_killed_what_waits_is_refused_at_once(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with prompted(view) as person, started("cat", ".env", cwd=view.root) as program:
        person.expect("allow? [o,d,s,n,N,?] ")
        begun = time.monotonic()
        person.process.kill()
        assert "Permission denied" in output(program)
        # Long before its time would be up.
        assert time.monotonic() - begun < 10


def test_when_one_of_two_is_killed_the_other_answers(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with (
        following(view) as stream,
        prompted(view) as person,
        started("cat", ".env", cwd=view.root) as program,
    ):
        person.expect("allow? [o,d,s,n,N,?] ")
        question = stream.next("question")
        person.process.kill()
        soon(lambda: told(view, "asks")["followers"] == 1)
        assert [one["id"] for one in told(view, "asks")["questions"]] == [question["id"]]
        assert sandboxfs(view, "answer", str(question["id"]), "allow").returncode == 0
        assert output(program).startswith("SECRET=1")


def test_of_two_who_answer_at_once_one_counts_and_the_other_is_told(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with (
        following(view) as one,
        following(view) as other,
        started("cat", ".env", cwd=view.root) as program,
    ):
        question = one.next("question")
        assert other.next("question")["id"] == question["id"]
        words = ["answer", str(question["id"]), "allow", "-s", "test", "--json"]
        command = [sys.executable, "-m", "sandboxfs", *words]
        both = [
            subprocess.Popen(command, env=environment(view), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for _ in range(2)
        ]
        told_them = [answering.communicate(timeout=PATIENCE) for answering in both]
        assert sorted(answering.returncode for answering in both) == [0, 2]
        (late,) = [err for answering, (_, err) in zip(both, told_them, strict=True) if answering.returncode]
        assert json.loads(late)["error"]["over"]["outcome"] == "allowed"
        assert one.next("over") == other.next("over")
        assert output(program).startswith("SECRET=1")


def test_whoever_closes_the_stream_is_nobody_any_more(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as stream, started("cat", ".env", cwd=view.root) as program:
        stream.next("question")
        assert stream.process.stdout is not None
        stream.process.stdout.close()
        assert "Permission denied" in output(program)
        assert stream.process.wait(PATIENCE) == 141


def test_the_stream_ends_with_the_session(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with following(view) as stream:
        view.stop()
        assert stream.process.wait(PATIENCE) == 0


def test_a_person_answers_with_letters(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with prompted(view) as person:
        with started("cat", ".env", cwd=view.root) as program:
            shown = person.expect("allow? [o,d,s,n,N,?] ")
            assert "read .env" in shown
            assert f"by cat[{program.pid}]" in shown
            assert f"[{os.getpid()}]" in shown
            assert "asked by rule '.env* = ask' (--rule)" in shown or "(--ask)" in shown
            assert "    | SECRET=1\n" in shown
            # Nothing of the file reaches the terminal as it is.
            assert "\\x1b[2Jhidden \\u202e" in shown
            assert "\x1b[2J" not in shown
            # Nobody has typed anything: perhaps nobody is there.
            assert "Enter stops the clock" in shown
            (waiting,) = told(view, "asks")["questions"]
            assert waiting["remaining"] is not None
            person.type(b"\n")
            person.expect("allow? [o,d,s,n,N,?] ")
            (waiting,) = told(view, "asks")["questions"]
            assert waiting["remaining"] is None
            person.type(b"?\n")
            assert "allow once" in person.expect("allow? [o,d,s,n,N,?] ")
            person.type(b"d\n")
            assert output(program).startswith("SECRET=1")
        assert (view.root / "config/.env").read_text() == "SECRET=3\n"
        assert told(view, "revoke", "--all")["revoked"] != []
        with started("cat", ".env.local", cwd=view.root) as program:
            person.expect("read .env.local")
            assert "Enter stops the clock" not in person.expect("allow? [o,d,s,n,N,?] ")
            (waiting,) = told(view, "asks")["questions"]
            assert waiting["remaining"] is None
            person.type(b"N use config.example\n")
            assert "Permission denied" in output(program)
        (grant,) = told(view, "grants")["grants"]
        assert (grant["decision"], grant["for"]) == ("deny", "path")
        assert grant["reason"] == "use config.example"
        person.type(CTRL_D)
        person.finish()
        assert person.process.returncode == 0


def test_a_person_is_told_who_else_answered_and_what_was_typed_for_it_is_no_answer(mount: Mount) -> None:
    view = mount(TREE, *ASK)
    with (
        prompted(view) as person,
        started("cat", ".env", cwd=view.root) as program,
    ):
        person.expect("allow? [o,d,s,n,N,?] ")
        with started("cat", "config/.env", cwd=view.root) as other:
            soon(lambda: len(told(view, "asks")["questions"]) == 2)
            first, second = told(view, "asks")["questions"]
            assert sandboxfs(view, "answer", str(first["id"]), "allow").returncode == 0
            shown = person.expect("allow? [o,d,s,n,N,?] ")
            assert f"[{first['id']}] allowed by " in shown
            assert f"[{second['id']}] read config/.env" in shown
            assert output(program).startswith("SECRET=1")
            # Meant for the first.
            person.type(b"o\n")
            person.expect("typed too soon")
            assert [one["id"] for one in told(view, "asks")["questions"]] == [second["id"]]
            time.sleep(1)
            person.type(b"n\n")
            assert "Permission denied" in output(other)


def test_what_was_granted_can_be_kept_as_tables(mount: Mount, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    view = mount(TREE, *ASK, "--config", str(config))
    with following(view) as stream, started("cat", ".env", cwd=view.root) as program:
        question = stream.next("question")
        sandboxfs(view, "answer", str(question["id"]), "allow", "--for", "path")
        output(program)
    printed = sandboxfs(view, "grants", "--toml").stdout
    view.stop()
    config.write_text(printed)
    view.start()
    assert (view.root / ".env").read_text().startswith("SECRET=1")
    done = subprocess.run(["cat", ".env.local"], cwd=view.root, capture_output=True, text=True, check=False)
    assert "Permission denied" in done.stderr


def test_why_says_what_would_become_of_a_question_now(mount: Mount) -> None:
    view = mount(TREE, *ASK)

    def why(*words: str, status: int = 1) -> tuple[str, dict[str, object]]:
        shown = sandboxfs(view, "why", *words)
        assert shown.returncode == status, shown.stderr
        found: dict[str, object] = json.loads(sandboxfs(view, "why", *words, "--json").stdout)
        return shown.stdout, found

    shown, found = why(".env")
    assert shown.startswith("read waits for a person for '.env': asked by rule '.env* = ask'")
    assert "refused at once now: nobody is connected; 'sandboxfs asks --follow'" in shown
    assert "sandboxfs allow .env ro" in shown
    assert (found["outcome"], found["asks"]) == ("refused", {"followers": 0, "questions": [], "grants": []})
    shown, found = why(".env", "write", status=0)
    assert "commit leaves it out until a person approves it" in shown
    assert (found["outcome"], found["asks"]) == ("held", None)
    assert why("plain", status=0)[1]["outcome"] == "happens"
    rules = sandboxfs(view, "rules")
    assert "what a rule asks about is refused at once: nobody is connected" in rules.stderr
    assert "what a rule holds" in rules.stderr
    with following(view) as stream, started("cat", ".env", cwd=view.root) as program:
        question = stream.next("question")
        shown, found = why(".env")
        assert "a program would wait now: one is connected" in shown
        assert f"question {question['id']} waits: 'sandboxfs answer {question['id']} allow'" in shown
        assert (found["outcome"], found["asks"]) == (
            "waits",
            {"followers": 1, "questions": [question["id"]], "grants": []},
        )
        assert "question" not in why("config/.env")[0]
        terms = ("--for", "path", "--during", "1h", "--program")
        assert sandboxfs(view, "answer", str(question["id"]), "allow", *terms).returncode == 0
        assert output(program).startswith("SECRET=1")
        (grant,) = told(view, "grants")["grants"]
        shown, found = why(".env")
        assert f"grant {grant['id']} allows it: for path '.env', for program '" in shown
        assert "left" in shown
        assert "other programs would wait now" in shown
        stream.next("over")
        with started("cat", ".env.local", cwd=view.root) as program:
            question = stream.next("question")
            sandboxfs(view, "answer", str(question["id"]), "allow", "--for", "directory")
            output(program)
        shown, found = why("config/.env", status=0)
        assert "allows it: for directory '.', for anybody" in shown
        assert found["outcome"] == "happens"
        listed = json.loads(sandboxfs(view, "rules", "--json").stdout)
        assert listed["asks"] == {"followers": 1, "questions": 0, "grants": 2}
        assert "2 grants from answers: 'sandboxfs grants'" in sandboxfs(view, "rules").stderr
    project = Path(__file__).parents[2]
    inside = run_sandboxfs(
        "why",
        ".env",
        "-s",
        "test",
        "--json",
        state=view.state,
        cwd=view.root,
        environment={"PYTHONPATH": str(project)},
    )
    assert (json.loads(inside.stdout)["outcome"], json.loads(inside.stdout)["asks"]) == ("waits", None)
    view.stop()
    shown, found = why(".env")
    assert "programs wait while somebody is connected who can be asked" in shown
    assert (found["outcome"], found["asks"]) == ("waits", None)


def test_why_tells_what_becomes_of_executing_what_the_sandbox_made(mount: Mount) -> None:
    view = mount(TREE, "--preset", "careful")
    done = sandboxfs(view, "why", "tool", "execute")
    assert "where the sandbox made or changed it, a person is asked, once for each content" in done.stdout
    assert json.loads(sandboxfs(view, "why", "tool", "execute", "--json").stdout)["new_programs"] == "ask"
    assert json.loads(sandboxfs(view, "why", "tool", "read", "--json").stdout)["new_programs"] is None
    rules = sandboxfs(view, "rules")
    assert "executing what the sandbox made or changed" in rules.stderr


def test_nobody_answers_from_inside_the_view(mount: Mount, tmp_path: Path) -> None:
    view = mount(TREE, *ASK)
    project = Path(__file__).parents[2]
    with following(view) as stream, started("cat", ".env", cwd=view.root) as program:
        question = stream.next("question")
        done = run_sandboxfs(
            "answer",
            str(question["id"]),
            "allow",
            "-s",
            "test",
            "--json",
            state=view.state,
            cwd=view.root,
            environment={"PYTHONPATH": str(project)},
        )
        assert done.returncode == 2
        assert json.loads(done.stderr)["error"]["inside"] is True
        sandboxfs(view, "answer", str(question["id"]), "deny")
        output(program)
