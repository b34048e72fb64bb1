"""How does a Python program use sandboxfs?

    with Sandbox("~/projects/app", rules=["**/.env*=hide"]) as sandbox:
        done = sandbox.run(["make", "test"])
        for change in sandbox.changes():
            print(change)
        if done.returncode == 0:
            sandbox.commit()

The same parts as the command line: the block holds the view, programs are run by `sandboxfs run` joining it,
and changes are committed and discarded by the verbs. Every failure is a `SandboxError`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from sandboxfs.cli.aftermath import Change, Denied, deeds
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.cli.run_request import RunRequest
from sandboxfs.cli.running import Runner, Session
from sandboxfs.cli.views import Beginning
from sandboxfs.confine.choice import Confinement
from sandboxfs.confine.environment import GIVEN, parse_assignment
from sandboxfs.confine.home import Home
from sandboxfs.control.launch import daemon_environment
from sandboxfs.errors import SandboxError, UsageError, error_from_json
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

__all__ = ["Change", "Denied", "Sandbox", "SandboxError"]

Words = str | os.PathLike[str]
_W = TypeVar("_W", Confinement, Home)


class Sandbox:
    """A sandbox of one workspace, mounted while its block is open; the changes stay in it afterwards."""

    def __init__(
        self,
        workspace: Words,
        *,
        name: str | None = None,
        rules: Sequence[str] = (),
        allow: Sequence[str] = (),
        mode: str | None = None,
        network: bool = False,
        home: str = "private",
        confine: str = "auto",
        env: Sequence[str] = (),
    ) -> None:
        """Prepare a sandbox of *workspace*; nothing happens before the block begins.

        *name* resumes that sandbox; without it the one of the workspace is resumed, or one is made. *rules*
        are `PATTERN=MODE`, *allow* are `PATH[:MODE]`, *env* are `NAME[=VALUE]`, as on the command line, and
        so are the words of *mode*, *home* and *confine*.
        """
        self._words = ["--home", home, "--confine", confine, *(["--network"] if network else [])]
        variables = tuple(map(parse_assignment, env))
        self._variables = dict(variables)
        self._request = RunRequest(
            workspace=str(Path(workspace).expanduser().absolute()),
            sandbox=name,
            policy=PolicyRequest(mode=mode, rules=tuple(rules), allows=tuple(allow), roots=True),
            confine=_word(Confinement, confine, "confine"),
            network=network,
            home=_word(Home, home, "home"),
            variables=variables,
        )
        self._runner: Runner | None = None
        self._session: Session | None = None
        self._log: tuple[int, int] | None = None

    def __enter__(self) -> "Sandbox":
        locations = Locations.from_environment()
        self._environment = daemon_environment(locations)
        self._runner = Runner(Store(locations), self._request, os.environ)
        self._session = self._runner.__enter__()
        self._log = Beginning.of(self._session.view, 0).log
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.__exit__()
        self._runner = self._session = None

    @property
    def name(self) -> str:
        """What the sandbox is called, for the verbs of the command line."""
        return self._opened().name

    @property
    def view(self) -> Path:
        """Where the view can be looked at from outside; programs in it see it at the workspace's own path."""
        return self._opened().view.record.mountpoint

    def run(
        self,
        command: Sequence[Words],
        *,
        cwd: Words | None = None,
        env: Mapping[str, str] | None = None,
        input: str | None = None,  # noqa: A002 - as in subprocess
        capture_output: bool = False,
        timeout: float | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        """Run *command* confined in the view and return how it ended.

        It starts in *cwd*, a directory of the workspace or of what is allowed beside it, else in the
        workspace. *env* are variables it gets besides; their values show in no list of processes. The return
        code is the program's own; 125 to 127 mean what they mean for `sandboxfs run`.
        """
        session = self._opened()
        if isinstance(command, str | bytes) or not command:
            raise UsageError(f"expected a program and its arguments, found {command!r}")
        variables = self._variables | dict(env or {})
        words = [
            *self._words,
            *(word for path in session.files for word in ("--allow", f"{path}:ro")),
            *(word for name in variables for word in ("--env", name)),
        ]
        whole = ["run", "--quiet", "-s", session.name, *words, "--", *(os.fspath(word) for word in command)]
        return subprocess.run(
            _command(*whole),
            cwd=session.view.record.workspace if cwd is None else _directory(session, cwd),
            env=self._environment | _given(variables),
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=capture_output,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def changes(self) -> tuple[Change, ...]:
        """Return what the sandbox has changed, sorted by path."""
        return deeds(self._begun()).changes

    def denials(self) -> tuple[Denied, ...]:
        """Return what rules have refused since the block began."""
        return deeds(self._begun()).denials

    def commit(self, *paths: Words, on_conflict: str = "fail") -> None:
        """Apply the changes at and below *paths*, all without any, to the workspace: all of it or nothing."""
        self._review("commit", ["--on-conflict", on_conflict], paths)

    def discard(self, *paths: Words) -> None:
        """Drop the changes at and below *paths*, all without any."""
        self._review("discard", [] if paths else ["--all"], paths)

    def undo(self) -> None:
        """Take the last commit or discard back."""
        self._review("undo", [], ())

    def _review(self, verb: str, options: list[str], paths: Sequence[Words]) -> None:
        session = self._opened()
        words = [
            verb,
            "-s",
            session.name,
            "--yes",
            "--json",
            *options,
            "--",
            *(os.fspath(path) for path in paths),
        ]
        done = subprocess.run(
            _command(*words),
            cwd=session.view.record.workspace,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
        )
        if done.returncode != 0:
            raise _failure(verb, done.stderr)

    def _opened(self) -> Session:
        if self._session is None:
            raise UsageError("the sandbox is not open: use it in its 'with' block")
        return self._session

    def _begun(self) -> Beginning:
        return Beginning(self._opened().view, 0, self._log)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "sandboxfs", *words]


def _directory(session: Session, given: Words) -> Path:
    """Where a program is to start, which it must be able to see."""
    path = Path(os.path.realpath(given))
    if session.place(path) is None or not path.is_dir():
        raise UsageError(f"cwd: {os.fspath(given)!r} is no directory of the workspace")
    return path


def _given(variables: Mapping[str, str | None]) -> dict[str, str]:
    """Values for a command to pass on: not in its arguments, which everybody can read, nor as its own."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise UsageError(f"env: bad variable {name!r}")
    return {f"{GIVEN}{name}": value for name, value in variables.items() if value is not None}


def _word(kind: type[_W], word: str, what: str) -> _W:
    try:
        return kind(word)
    except ValueError as error:
        raise UsageError(f"{what}: expected one of {', '.join(kind)}, found '{word}'") from error


def _failure(verb: str, complaint: str) -> SandboxError:
    for line in reversed(complaint.splitlines()):
        try:
            described = json.loads(line)["error"]
        except (ValueError, KeyError, TypeError):
            continue
        return error_from_json(described)
    return UsageError(f"cannot {verb}: {complaint.strip()}")
