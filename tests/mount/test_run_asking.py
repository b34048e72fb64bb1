"""A program of `run` waits for a person, who answers elsewhere; and the summary tells what was refused."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import runs
from tests.support.mount_driver import run_sandboxfs
from tests.support.tree import build

pytestmark = pytest.mark.any_user


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return build(
        tmp_path / "app", {".env": "SECRET=1\n", "config/.env": "SECRET=2\n", "config/.env.b": "3\n"}
    )


def sandboxfs(*words: str, status: int = 0) -> str:
    done = run_sandboxfs(*words, "-s", "app")
    assert done.returncode == status, done.stderr
    return done.stdout


class Follower:
    """Another process that follows the questions of the run, and answers by the command."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def question(self) -> Mapping[str, object]:
        assert self._process.stdout is not None
        while True:
            event: dict[str, object] = json.loads(self._process.stdout.readline())
            if event["event"] == "question":
                return event

    def answer(self, question: Mapping[str, object], *words: str) -> None:
        sandboxfs("answer", str(question["id"]), *words)


@contextmanager
def running(
    workspace: Path, script: str, *options: str
) -> Iterator[tuple["subprocess.Popen[str]", Follower]]:
    """A run that is followed before its script begins, which the first line of its input starts."""
    pipe = subprocess.PIPE
    words = runs.run_words("--ask", ".env*", *options, "--", "sh", "-c", f"read go; {script}")
    follow = [sys.executable, "-m", "sandboxfs", "asks", "-s", "app", "--follow", "--json"]
    run = subprocess.Popen(words, cwd=workspace, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        until_served(run)
        with subprocess.Popen(follow, stdout=pipe, text=True) as follower:
            try:
                until_followed(follower)
                assert run.stdin is not None
                run.stdin.write("go\n")
                run.stdin.flush()
                yield run, Follower(follower)
            finally:
                follower.kill()
    finally:
        run.kill()
        run.communicate(timeout=runs.PATIENCE)


def until_served(run: "subprocess.Popen[str]") -> None:
    while run_sandboxfs("rules", "-s", "app").returncode != 0:
        assert run.poll() is None


def until_followed(follower: "subprocess.Popen[str]") -> None:
    while json.loads(sandboxfs("asks", "--json"))["followers"] == 0:
        assert follower.poll() is None


def test_a_program_of_a_run_gets_what_a_person_allows_once_for_its_path_and_for_its_directory(
    workspace: Path,
) -> None:
    script = "cat .env; cat .env; cat .env; cat config/.env config/.env.b"
    with running(workspace, script) as (run, person):
        question = person.question()
        assert (question["path"], question["access"]) == (".env", "read")
        person.answer(question, "allow")
        again = person.question()
        assert again["path"] == ".env"
        person.answer(again, "allow", "--for", "path")
        other = person.question()
        assert other["path"] == "config/.env"
        person.answer(other, "allow", "--for", "directory", "--during", "1h")
        out, err = run.communicate(timeout=runs.PATIENCE)
    assert out == "SECRET=1\n" * 3 + "SECRET=2\n3\n"
    assert "denied" not in err
    assert run.returncode == 0


def test_the_summary_of_a_run_says_what_a_person_refused_and_why(workspace: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    with running(workspace, "cat .env; cat config/.env", "--json", str(report)) as (run, person):
        person.answer(person.question(), "deny", "--reason", "use config.example")
        person.answer(person.question(), "deny")
        out, err = run.communicate(timeout=runs.PATIENCE)
    assert out == ""
    assert err.count("Permission denied") == 2
    asked = "asked by rule '.env* = ask' (--rule)"
    assert f"sandboxfs: read denied for '.env': {asked}: 'use config.example'" in err
    assert f"sandboxfs: read denied for 'config/.env': {asked}: 'refused by a person'" in err
    assert run.returncode == 1
    (told,) = json.loads(report.read_text())["sandboxes"]
    assert [one["reason"] for one in told["denials"]] == ["use config.example", "refused by a person"]


def test_the_summary_of_a_run_says_that_nobody_was_there_to_ask(workspace: Path) -> None:
    done = runs.run("--ask", ".env*", "--", "cat", ".env", cwd=workspace, status=1)
    assert "read denied for '.env': asked by rule '.env* = ask' (--rule): 'nobody is connected" in done.stderr


def test_a_killed_run_leaves_no_question(workspace: Path) -> None:
    with running(workspace, "cat .env") as (run, person):
        person.question()
        run.kill()
        run.wait(runs.PATIENCE)
    runs.check_nothing_left("no-such-mark")
