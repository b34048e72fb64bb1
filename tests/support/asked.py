"""A person, or a program, who answers the questions of a mount over its control socket."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypedDict, cast

from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.state.locations import Locations


class Followed(Protocol):
    """A sandbox called `test`, by its state directory."""

    @property
    def state(self) -> Path: ...


class Program(TypedDict):
    pid: int
    exe: str | None
    argv0: str | None
    command: str
    parents: "list[Program]"


class AskedQuestion(TypedDict):
    id: int
    access: str
    path: str
    more: int
    content: str
    rule: dict[str, object]
    program: Program
    requests: int
    remaining: float
    # Of a wish alone.
    mode: str
    reason: str | None
    problem: str | None


GrantFields = TypedDict(
    "GrantFields",
    {"id": int, "for": str, "path": str, "hits": int, "open": int, "who": str, "remaining": float | None},
)


class Event(TypedDict, total=False):
    """An event, or the result of a verb."""

    event: str
    id: int
    question: AskedQuestion
    questions: list[AskedQuestion]
    outcome: str
    by: dict[str, object]
    reason: str | None
    decision: str
    grant: GrantFields
    grants: list[GrantFields]
    revoked: list[GrantFields]


# Against hanging, no more.
PATIENCE = 60.0


class Follower:
    """A connection that follows the questions of a mount."""

    def __init__(self, mount: Followed) -> None:
        self.address = control_address(
            Locations.from_environment(os.environ | {"SANDBOXFS_STATE_DIR": str(mount.state)}), "test"
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(PATIENCE)
        self._socket.connect(str(self.address.found()))
        self._socket.sendall(b'{"v": 1, "id": 7, "verb": "asks", "args": {"follow": true}}\n')
        self._lines = self._socket.makefile("rb")
        self.began = self.next("begin")

    def next(self, event: str | None = None) -> Event:
        """Wait for the next event, which must be of this kind."""
        line = self._lines.readline()
        assert line, "the daemon ended the connection"
        message = json.loads(line)
        assert message["id"] == 7
        assert message["ok"], message
        result: Event = message["result"]
        assert event in (None, result["event"]), result
        return result

    def question(self) -> AskedQuestion:
        """Wait for the next question."""
        return self.next("question")["question"]

    def answer(self, question: AskedQuestion, decision: str = "allow", **how: object) -> Event:
        return self.ask("answer", id=question["id"], decision=decision, **how)

    def ask(self, verb: str, **args: object) -> Event:
        return cast(Event, ask(self.address, verb, args))

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@contextmanager
def following(mount: Followed) -> Iterator[Follower]:
    follower = Follower(mount)
    try:
        yield follower
    finally:
        follower.close()


@contextmanager
def started(*command: str | Path, cwd: Path) -> Iterator["subprocess.Popen[str]"]:
    """A program that works in the view, which is killed in the end."""
    program = subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate(timeout=PATIENCE)


def python(code: str, *arguments: str | Path) -> list[str]:
    """The command that runs Python code."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def output(program: "subprocess.Popen[str]") -> str:
    return program.communicate(timeout=PATIENCE)[0]


def soon(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
