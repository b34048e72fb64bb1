"""Views of a run: what is asked of it, the roots it shows, their daemons while it lasts, and what these saw.

A directory that is allowed, and the user's home where it is copy-on-write, is a sandbox of its own beside the
first: a companion, with a daemon, an upper and a log of its own, bound to its own absolute path. A file can
be shown for reading only.

A run starts the daemon of its sandbox (`open_views`), or joins one that serves it already. It holds the
lifeline of every daemon that a run has started; the last run to let go of it ends the daemon. One started by
`mount` stays.

An observation begins before the program and ends after it: what was refused, and what breaks an assertion. A
daemon that does not tell what it saw breaks every assertion.
"""

import os
import select
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
from pathlib import Path
from typing import TypeVar

from sandboxfs.confine.detect import Confinement
from sandboxfs.confine.environment import parse_assignment
from sandboxfs.confine.home import Home, check_shown_home
from sandboxfs.confine.mounts import IMPOSSIBLE
from sandboxfs.control.control_socket import ask, control_address
from sandboxfs.control.mount_table import MountTable, SandboxStatus, observe
from sandboxfs.errors import DaemonLost, SandboxError, UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.assertions import Assertions
from sandboxfs.policy.config import Allow, PolicyRequest
from sandboxfs.policy.model import Mode
from sandboxfs.state.lock import hold_lifeline, holder, is_ending, lifeline_path, remove_lifeline
from sandboxfs.state.store import SandboxRecord, Store

# What is asked for

UNCHANGED = PolicyRequest(roots=True)


@dataclass(frozen=True)
class RunRequest:
    """Where programs are to run and how they are kept in.

    *current* is the directory in which that was asked, at which relative paths start, and programs too if
    they can see it; None when it is gone, or does not matter.
    """

    workspace: str | None = None
    sandbox: str | None = None
    new: bool = False
    config: str | None = None
    policy: PolicyRequest = UNCHANGED
    confine: Confinement = Confinement.AUTO
    network: bool = False
    home: Home = Home.PRIVATE
    variables: tuple[tuple[str, str | None], ...] = ()
    clear_environment: bool = False
    whole_environment: bool = False
    current: str | None = None

    @property
    def place(self) -> str | None:
        """Where the workspace is, as it was asked for."""
        if self.workspace is None or self.current is None:
            return self.workspace
        return str(Path(self.current, self.workspace))


CONFINEMENTS = tuple(one.value for one in Confinement)
HOMES = tuple(one.value for one in Home)
_Word = TypeVar("_Word", Confinement, Home)


def confinement_called(word: str) -> Confinement:
    """Read the word for what keeps programs in."""
    return _called(Confinement, word, "confine")


def home_called(word: str) -> Home:
    """Read the word for the home that programs have."""
    return _called(Home, word, "home")


def _called(kind: type[_Word], word: str, what: str) -> _Word:
    try:
        return kind(word)
    except ValueError as error:
        raise UsageError(f"{what}: expected one of {', '.join(kind)}, found '{word}'") from error


def variables_of(texts: Iterable[str]) -> tuple[tuple[str, str | None], ...]:
    """Read `NAME`, `GLOB` and `NAME=VALUE`."""
    return tuple(map(parse_assignment, texts))


# The roots

_COW = "use --home cow, which hides the secrets in it"


@dataclass(frozen=True)
class Root:
    """A directory beside the workspace, with the mode of what no rule names there."""

    path: Path
    mode: Mode


@dataclass(frozen=True)
class RunRoots:
    """What is shown beside the workspace: *roots* and the *home* as companions, *files* for reading."""

    roots: tuple[Root, ...] = ()
    files: tuple[Path, ...] = ()
    home: Path | None = None


def check_workspace(workspace: Path, home: Path, kind: Home) -> None:
    """Refuse a *workspace* that cannot be confined, or that would show what *home* keeps secret."""
    if workspace in IMPOSSIBLE:
        raise UsageError(f"cannot run in {quoted(workspace)}: choose a directory to work on")
    if home.is_relative_to(workspace) and kind is not Home.COW:
        what = "is" if home == workspace else "holds"
        raise UsageError(f"the workspace {quoted(workspace)} {what} your home directory", hint=_COW)


def sort_out(allows: Iterable[Allow], workspace: Path, home: Path, kind: Home) -> RunRoots:
    """Check the places that are allowed outside *workspace* and say how each is shown."""
    roots: list[Root] = []
    files: list[Path] = []
    for allow in allows:
        path = _resolved(allow)
        if path.is_dir():
            _check_root(allow, path, workspace, home, [root.path for root in roots])
            roots.append(Root(path, allow.mode))
        elif allow.mode is not Mode.RO:
            raise _refusal(allow, "only a directory can be allowed for writing", f"{allow.path}:ro")
        else:
            files.append(path)
    shown_home = home if kind is Home.COW and not home.is_relative_to(workspace) else None
    if shown_home is not None:
        check_shown_home(shown_home)
    return RunRoots(tuple(roots), tuple(files), shown_home)


def _resolved(allow: Allow) -> Path:
    if allow.mode not in (Mode.RO, Mode.RW):
        raise _refusal(allow, f"a place outside the workspace cannot be '{allow.mode.value}'")
    try:
        path = MountTable.read().resolve(os.path.expanduser(allow.path))  # noqa: PTH111 - it may be relative to nothing
        there = path.exists()
    except (OSError, ValueError) as error:
        raise _refusal(allow, str(error)) from error
    if not there:
        raise _refusal(allow, "no such file or directory")
    return path


def _check_root(allow: Allow, path: Path, workspace: Path, home: Path, others: list[Path]) -> None:
    if path in IMPOSSIBLE:
        raise _refusal(allow, "it cannot be put into a world of its own")
    if workspace.is_relative_to(path):
        raise _refusal(allow, f"the workspace {quoted(workspace)} lies inside it")
    if home.is_relative_to(path):
        raise _refusal(
            allow, "your home directory lies inside it" if home != path else "it is your home", _COW
        )
    for other in others:
        if path.is_relative_to(other) or other.is_relative_to(path):
            raise _refusal(allow, f"it and {quoted(other)} lie inside one another")


def _refusal(allow: Allow, reason: str, hint: str | None = None) -> UsageError:
    return UsageError(f"{allow.source}: cannot allow {quoted(allow.path)}: {reason}", hint=hint)


# The views

# How long a daemon may take to end, or another command to let go of a sandbox, in seconds.
_PATIENCE = 15.0
_LOOK_AGAIN = 0.25


@dataclass
class RunView:
    """A view that is served while this process holds its *lifeline*, None for one that stays anyway."""

    store: Store
    record: SandboxRecord
    pid: int
    watch: int
    lifeline: int | None
    joined: bool
    resumed: bool
    # About a policy that may not be meant as it is written, and a commit that was interrupted.
    warnings: tuple[str, ...] = ()

    @property
    def died(self) -> bool:
        """Whether the daemon has ended, which it should not while it is held."""
        return bool(select.select([self.watch], [], [], 0)[0])

    @property
    def is_served(self) -> bool:
        """Whether a program that is started now finds the view in its place.

        After a lazy unmount the daemon lives on for what is open, and whatever the host has is in the place.
        """
        mount = MountTable.read().at(self.record.mountpoint)
        return not self.died and mount is not None and mount.ours

    def let_go(self) -> None:
        """Stop using it; return when the daemon has ended, unless others use it. May be called twice."""
        if self.watch < 0:
            return
        died = self.died
        path = lifeline_path(self.store.places(self.record.name))
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
            self._await_end(path)
        os.close(self.watch)
        self.watch = -1
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        if died:
            self._clear_away()

    def leave_to_parent(self) -> None:
        """Hold the lifeline no more, in a process that was forked from the one that does."""
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None

    def _await_end(self, path: Path) -> None:
        waited = 0.0
        while waited < _PATIENCE and not select.select([self.watch], [], [], _LOOK_AGAIN)[0]:
            waited += _LOOK_AGAIN
            if _held_by_others(path):
                return

    def _clear_away(self) -> None:
        """Take away what a daemon that was killed has left."""
        from sandboxfs.control.control_socket import control_address
        from sandboxfs.control.unmount import detach_dead

        mount = MountTable.read().at(self.record.mountpoint)
        if mount is not None and mount.ours:
            detach_dead(mount)
        if self.record.own_mountpoint:
            with suppress(OSError):
                self.record.mountpoint.rmdir()
        places = self.store.places(self.record.name)
        if holder(places.lock) is None:
            remove_lifeline(lifeline_path(places))
            address = control_address(self.store.locations, self.record.name)
            for path in (address.link, address.socket):
                with suppress(OSError):
                    path.unlink()


@dataclass(frozen=True)
class RunStart:
    """When a run began to use a view, and the *observation* by which its daemon knows the run.

    None for a daemon that observes nothing.
    """

    view: RunView
    when: int
    observation: str | None = None


def _held_by_others(path: Path) -> bool:
    other = hold_lifeline(path)
    if other is None:
        return False
    try:
        flock(other, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(other)
    return False


def join_view(store: Store, name: str) -> RunView | None:
    """Use the view of the sandbox called *name* if it is served; None when it is not."""
    while True:
        sandbox = observe(store, store.load(name), MountTable.read())
        if not sandbox.held:
            return None
        joined = _join(store, sandbox)
        if joined is not None:
            return joined
        # It is being started, changed by a command, or about to end.
        if sandbox.pid is None or not _wait_for(sandbox.pid):
            from sandboxfs.service.mount_plan import refuse_if_held

            refuse_if_held(observe(store, sandbox.record, MountTable.read()))


def _join(store: Store, sandbox: SandboxStatus) -> RunView | None:
    path = lifeline_path(store.places(sandbox.name))
    if sandbox.pid is None or sandbox.state != "mounted" or is_ending(path):
        return None
    lifeline = hold_lifeline(path)
    if lifeline is None and is_ending(path):
        return None
    if lifeline is not None:
        flock(lifeline, LOCK_SH)
    try:
        watch = os.pidfd_open(sandbox.pid)
    except ProcessLookupError:
        if lifeline is not None:
            os.close(lifeline)
        return None
    return RunView(
        store,
        sandbox.record,
        sandbox.pid,
        watch,
        lifeline,
        joined=True,
        resumed=True,
        warnings=_interruption(store, sandbox),
    )


def _interruption(store: Store, sandbox: SandboxStatus) -> tuple[str, ...]:
    from sandboxfs.service.records import interruption

    found = interruption(store.places(sandbox.name))
    return () if found is None else (found,)


def _wait_for(pid: int) -> bool:
    from sandboxfs.control.unmount import ProcessWatch

    with ProcessWatch([pid]) as watch:
        return watch.wait_for_all(_PATIENCE)


# What their daemons saw

# How long a daemon may take to tell what it saw: dirty pages are written back first.
_ANSWERED_WITHIN = 60.0
NOTHING_ASSERTED = Assertions()


@dataclass(frozen=True)
class Denied:
    """One thing that was refused, and how often.

    *reason* is what the person said who refused it, or why nobody was asked, where a rule asks.
    """

    sentence: str
    times: int
    path: str
    access: str
    reason: str | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "sentence": self.sentence,
            "times": self.times,
            "path": self.path,
            "access": self.access,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class RunObservation:
    """What the daemon of one view saw during a run.

    *objections* are paths that were written, each with the assertion against it; *more* counts what is not
    among the examples. *lost* says why nothing is known.
    """

    denials: tuple[Denied, ...] = ()
    more_denials: int = 0
    objections: tuple[tuple[str, str], ...] = ()
    more_objections: int = 0
    lost: str | None = None


NOTHING_SEEN = RunObservation()


def begin(views: Sequence[RunView], when: int, assertions: Assertions = NOTHING_ASSERTED) -> list[RunStart]:
    """Begin an observation in each of *views*; without *assertions* a daemon that cannot is passed over."""
    return [_begin(view, when, assertions) for view in views]


def _begin(view: RunView, when: int, assertions: Assertions) -> RunStart:
    wanted = {"no_writes": list(assertions.no_writes), "writes_only": list(assertions.writes_only)}
    try:
        answer = _ask(view, "observe", wanted)
        number = answer.get("observation")
    except SandboxError:
        if assertions.any:
            raise
        number = None
    return RunStart(view, when, number if isinstance(number, str) else None)


def observed(beginning: RunStart, *, end: bool) -> RunObservation:
    """Ask what was seen since *beginning*, for the last time with *end*."""
    if beginning.observation is None:
        return RunObservation(
            lost=f"the daemon of sandbox '{beginning.view.record.name}' did not observe the run"
        )
    try:
        answer = _ask(beginning.view, "observed", {"observation": beginning.observation, "end": end})
        return _read(answer)
    except SandboxError as error:
        return RunObservation(lost=error.message)


def _ask(view: RunView, verb: str, args: Mapping[str, object]) -> dict[str, object]:
    address = control_address(view.store.locations, view.record.name)
    answer = ask(address, verb, args, _ANSWERED_WITHIN)
    if not isinstance(answer, dict):
        raise DaemonLost("the daemon's answer makes no sense")
    return answer


def _read(answer: Mapping[str, object]) -> RunObservation:
    def listed(key: str) -> list[dict[str, object]]:
        found = answer.get(key)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise DaemonLost("the daemon's answer makes no sense")
        return found

    return RunObservation(
        denials=tuple(
            Denied(
                str(one["sentence"]),
                int(str(one["times"])),
                str(one["path"]),
                str(one["access"]),
                None if one.get("reason") is None else str(one["reason"]),
            )
            for one in listed("denials")
        ),
        more_denials=int(str(answer["more_denials"])),
        objections=tuple((str(one["path"]), str(one["assertion"])) for one in listed("objections")),
        more_objections=int(str(answer["more_objections"])),
    )
