"""Open runs: views that are held, and the programs confined in them.

A confinement is chosen, views are started or joined, a world is built around them, programs run in it, and
the views are let go. What was made is taken back in the reverse order, whatever happens. A program is
supervised by this process, as the command line has it, or by a runner process of its own: then any thread may
start it, and several may run at once.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from sandboxfs.confine import landlock
from sandboxfs.confine.detect import Confinement, ConfinementChoice, choose
from sandboxfs.confine.environment import GIVEN, Environment, environment_for, named_values
from sandboxfs.confine.home import NOWHERE, Home, check_private_home
from sandboxfs.confine.landlock import TemporaryDirectory
from sandboxfs.confine.mounts import ConfinedMounts, System, find_system, interpreter_directory, name_service
from sandboxfs.confine.program_values import (
    BubblewrapConfinement,
    ConfinedProgram,
    LandlockConfinement,
    ProgramEnd,
)
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import DaemonLost
from sandboxfs.paths import make_directories, quoted
from sandboxfs.runs.open_views import ViewOpener
from sandboxfs.runs.run_home import (
    STAND_IN,
    HomeMounts,
    RunFiles,
    hold_home,
    searched_last,
    with_identity,
    with_mark,
    with_stand_in,
)
from sandboxfs.runs.run_views import RunRequest, RunView
from sandboxfs.state.locations import Locations, home_directory
from sandboxfs.state.store import Store

if TYPE_CHECKING:
    from sandboxfs.confine.runner import RunningProgram, StandardStreams
    from sandboxfs.runs.widening import RunWidening

# What doors need of confinement is offered here too.
__all__ = [
    "Confinement",
    "OpenRun",
    "ProgramEnd",
    "ProgramRequest",
    "RunOpener",
    "Tell",
]

# Where programs find the files under bubblewrap; elsewhere they are in a directory of the run's own.
DIRECTORY = Path("/run/sandboxfs")


@dataclass(frozen=True)
class ProgramRequest:
    """What to run in an open run: *command*, and where; where programs start when *directory* is None.

    *variables* are passed on or set besides those of the run; None as a value passes the host's on. A shell
    that is *marked* says in its prompt where it is.
    """

    command: tuple[str, ...]
    directory: Path | None = None
    variables: tuple[tuple[str, str | None], ...] = ()
    marked: bool = False


Tell = Callable[[str], None]
"""Is told, in a sentence, what may not be meant as it is."""


@dataclass(frozen=True)
class OpenRun:
    """An opened run: its views, the first of which is the workspace's, and what keeps programs in."""

    request: RunRequest
    choice: ConfinementChoice
    system: System
    views: tuple[RunView, ...]
    files: tuple[Path, ...]
    home: Path
    private_home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    # Globs of variables that the user's configuration passes on in this workspace.
    passed: tuple[str, ...] = ()
    # Which sandbox is used, where that is not plain.
    remark: str | None = None

    @property
    def view(self) -> RunView:
        return self.views[0]

    @property
    def name(self) -> str:
        return self.view.record.name

    @property
    def confined_by_name(self) -> bool:
        """Whether views are where their workspaces are."""
        return self.choice.confinement is Confinement.BUBBLEWRAP

    def place(self, path: Path) -> Path | None:
        """Where a program finds *path* of the host; None when it does not."""
        for view in sorted(self.views, key=lambda one: -len(one.record.workspace.parts)):
            if path.is_relative_to(view.record.workspace):
                if self.confined_by_name:
                    return path
                return view.record.mountpoint / path.relative_to(view.record.workspace)
        for view in self.views:
            if path.is_relative_to(view.record.mountpoint):
                return self.place(view.record.workspace / path.relative_to(view.record.mountpoint))
        return None

    def program_environment(
        self, program: ProgramRequest | None = None, temporary: Path | None = None
    ) -> Environment:
        """The environment of *program*, and what was withheld from it.

        *temporary* is its directory for temporary files, where it has no /tmp of its own.
        """
        added = {"SANDBOXFS": "1", "SANDBOXFS_SANDBOX": self.name}
        top = self.place(self.view.record.workspace)
        if top is not None:
            added["SANDBOXFS_VIEW"] = str(top)
        if not self.request.network and self.choice.confinement is not Confinement.NONE:
            added["SANDBOXFS_NETWORK_DISABLED"] = "1"
        directory = None if program is None else program.directory
        home = {"HOME": str(self._home_inside()), "PWD": str(self.directory(directory))}
        host = dict(self.environment) | home
        variables = self._variables(program)
        if self.choice.confinement is Confinement.NONE:
            # Nothing is withheld from a program that could look it up.
            kept = {name: value for name, value in host.items() if not name.startswith(GIVEN)}
            return Environment(kept | named_values(host, variables) | added)
        made = environment_for(
            host,
            variables,
            added,
            clear=self.request.clear_environment,
            whole=self.request.whole_environment,
            configured=self.passed,
        )
        if temporary is not None:
            made.variables.setdefault("TMPDIR", str(temporary))
        return made

    def command_environment(self) -> dict[str, str]:
        """The environment of this process, in which a command, or a call, finds this sandbox again."""
        from sandboxfs.control.start_daemon import daemon_environment

        return daemon_environment(self.view.store.locations)

    def _variables(self, program: ProgramRequest | None) -> tuple[tuple[str, str | None], ...]:
        more = () if program is None else program.variables
        return tuple((dict(self.request.variables) | dict(more)).items())

    def directory(self, wanted: Path | None = None) -> Path:
        """Where a program starts that is to start at *wanted*, else where the run was asked for."""
        here = self.request.current if wanted is None else wanted
        inside = None if here is None else self.place(Path(here))
        top = self.place(self.view.record.workspace)
        return inside or top or Path("/")

    def _home_inside(self) -> Path:
        if self.request.home is Home.NONE:
            return NOWHERE
        if self.choice.confinement is Confinement.NONE:
            return self.home
        if self.request.home is Home.COW:
            return self.place(self.home) or self.home
        return self.home if self.confined_by_name else self.private_home

    def run(
        self,
        program: ProgramRequest,
        tell: Tell,
        meanwhile: Callable[[], object] | None = None,
        widening: "RunWidening | None" = None,
    ) -> ProgramEnd:
        """Run *program* to its end, supervised by this process; *meanwhile* is called once, while it starts.

        *widening* shows it further directories. For a process with one thread: it forks, and handles signals.
        """
        from sandboxfs.confine.supervisor import Supervisor

        with self._prepared(program, tell) as confined:
            if widening is not None:
                widening.home_lock = next(iter(confined.held), None)
            return Supervisor(confined, widening).run(meanwhile)

    def start(
        self, program: ProgramRequest, streams: "StandardStreams", tell: Tell, *, terminal: bool
    ) -> "RunningProgram":
        """Start *program* in a runner process, from any thread; with *terminal* it may use the caller's."""
        from sandboxfs.confine.runner import start_runner

        with self._prepared(program, tell) as confined:
            return start_runner(confined, streams, terminal=terminal)

    @contextmanager
    def _prepared(self, program: ProgramRequest, tell: Tell) -> Iterator[ConfinedProgram]:
        """Hold what *program* needs until it has started; its own processes hold that from then on."""
        temporary = self._temporary()
        given = self._given(program, temporary)
        if temporary is not None:
            temporary = replace(temporary, files=tuple(given.files.items()))
        variables = self.program_environment(program, None if temporary is None else temporary.path).variables
        # A PATH with a value of the caller's is meant as it is.
        set_path = any(name == "PATH" and value is not None for name, value in self._variables(program))
        if STAND_IN in given.files and not set_path and (place := self._place(temporary)) is not None:
            variables = {**variables, "PATH": searched_last(variables.get("PATH"), place)}
        mounts = self._hold_home(tell)
        try:
            yield ConfinedProgram(
                tuple(given.command),
                {**given.variables, **variables},
                self.directory(program.directory),
                self._confinement(mounts, given.files, temporary),
                held=() if mounts is None else (mounts.lock,),
                watched=tuple(view.watch for view in self.views),
                relayed=self.choice.confinement is not Confinement.NONE,
            )
        finally:
            if mounts is not None:
                os.close(mounts.lock)

    def _temporary(self) -> TemporaryDirectory | None:
        """The directory for a program that cannot have a /tmp of its own; it is not made yet."""
        if self.choice.confinement is not Confinement.LANDLOCK:
            return None
        return TemporaryDirectory(self.view.store.locations.runtime / "tmp" / os.urandom(8).hex())

    def _place(self, temporary: TemporaryDirectory | None) -> Path | None:
        """Where the program finds files of the run's own, if it can."""
        if self.confined_by_name:
            return DIRECTORY
        return None if temporary is None else temporary.files_directory

    def _given(self, program: ProgramRequest, temporary: TemporaryDirectory | None) -> RunFiles:
        """What the program gets beside its views and its home."""
        place = self._place(temporary)
        given = RunFiles(list(program.command))
        if place is not None and ":" not in str(place) and not self.request.clear_environment:
            given = with_stand_in(given, self.name)
        if self.request.home is not Home.COW and place is not None and not self.request.clear_environment:
            asked = {name: "" for name, _ in self._variables(program)}
            host = {**asked, **self.environment}
            given = with_identity(given, place, host, self.view.record.workspace)
        return with_mark(given, place, self.name) if program.marked else given

    def _hold_home(self, tell: Tell) -> HomeMounts | None:
        """Use the private home, if the program has one, until its processes have ended."""
        if self.request.home is not Home.PRIVATE or self.choice.confinement is Confinement.NONE:
            return None
        wanted = self._places_in_home() if self.confined_by_name else {}
        lock = self.view.store.places(self.name).home_lock
        mounts = hold_home(lock, self.private_home, wanted, keeps=self.confined_by_name)
        for name, moved in mounts.aside:
            tell(f"in the sandbox's home {quoted(name)} is now {quoted(moved)}: it was in the way of a mount")
        return mounts

    def _places_in_home(self) -> dict[PurePath, bool]:
        """What is mounted inside the private home, relative to it, and whether each is a directory."""
        world = self._world(None)
        fixed = (*world.readable, *world.system.directories, *world.private_temporary)
        shown = {place for _, place in world.writable} | {*fixed}
        inside = {place for place in shown if self.home in place.parents}
        return {
            place.relative_to(self.home): place.is_dir()
            for place in inside
            if inside.isdisjoint(place.parents)
        }

    def _confinement(
        self, mounts: HomeMounts | None, files: Mapping[str, bytes], temporary: TemporaryDirectory | None
    ) -> BubblewrapConfinement | LandlockConfinement | None:
        finding = self.choice.finding
        match self.choice.confinement:
            case Confinement.BUBBLEWRAP if finding.program is not None:
                texts = tuple((DIRECTORY / name, content) for name, content in files.items())
                return BubblewrapConfinement(
                    finding.program,
                    replace(self._world(mounts), texts=texts),
                    sizes=finding.sizes,
                    keep_from_abstract=self.request.network and finding.abi >= landlock.SCOPES_ABI,
                )
            case Confinement.LANDLOCK:
                return LandlockConfinement(self._fence(temporary), finding.abi, finding.attended, temporary)
            case _:
                return None

    def _world(self, mounts: HomeMounts | None) -> ConfinedMounts:
        writable = [(view.record.mountpoint, view.record.workspace) for view in self.views]
        if self.request.home is Home.PRIVATE:
            writable.append((self.private_home, self.home))
        if mounts is not None:
            writable += [(self.private_home / path, self.home / path) for path in mounts.kept]
        names = name_service(self.system) if self.request.network else []
        readable = filter(self._outside_the_views, (*self.files, *names))
        return ConfinedMounts(
            self._system_around(), tuple(writable), tuple(readable), network=self.request.network
        )

    def _system_around(self) -> System:
        """What of the system is mounted: nothing inside a view that has not made room for it."""
        covered = {place for view in self.views for place in view.record.covered}
        return replace(
            self.system,
            directories=tuple(
                place
                for place in self.system.directories
                if place in covered or self._outside_the_views(place)
            ),
            secret_files=tuple(filter(self._outside_the_views, self.system.secret_files)),
            secret_directories=tuple(filter(self._outside_the_views, self.system.secret_directories)),
        )

    def _outside_the_views(self, path: Path) -> bool:
        return not any(view.record.workspace in path.parents for view in self.views)

    def _fence(self, temporary: TemporaryDirectory | None) -> landlock.LandlockRules:
        whole = [view.record.mountpoint for view in self.views]
        if temporary is not None:
            whole.append(temporary.path)
        if self.request.home is Home.PRIVATE:
            whole.append(self.private_home)
        names = name_service(self.system) if self.request.network else []
        return landlock.LandlockRules(
            tuple(whole),
            (*landlock.readable_places(self.system), *self.files, *names),
            network=self.request.network,
        )


class RunOpener:
    """Opens a run, and takes back what it made when the block ends."""

    def __init__(
        self,
        request: RunRequest,
        environment: Mapping[str, str],
        waiting: WaitingDaemon | None = None,
    ) -> None:
        """Prepare; the daemon that is *waiting* is used if one is needed, and stays the caller's if not."""
        self._store = Store(Locations.from_environment(environment))
        self._request = request
        self._environment = dict(environment)
        self._waiting = waiting
        self._undo = ExitStack()
        self._views: tuple[RunView, ...] = ()

    def __enter__(self) -> OpenRun:
        with ExitStack() as undo:
            session = self._open(undo)
            self._views = session.views
            self._undo = undo.pop_all()
        return session

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        self._undo.close()
        # What the daemon of a sandbox wrote down is needed when it was lost.
        if kind is not None and not issubclass(kind, DaemonLost) and self._views:
            from sandboxfs.service.remove import remove_made

            remove_made(self._views)

    def _open(self, undo: ExitStack) -> OpenRun:
        system = find_system(interpreter_directory())
        choice = choose(self._request.confine, system, self._store.locations.runtime / "bubblewrap")
        home = home_directory(self._environment)
        if self._request.home is Home.PRIVATE and choice.confinement is Confinement.BUBBLEWRAP:
            check_private_home(home, system)
        opened = ViewOpener(
            self._store,
            self._request,
            self._environment,
            home,
            system,
            choice.confinement is Confinement.BUBBLEWRAP,
            self._waiting,
        ).open(undo)
        first = opened.views[0].record
        places = self._store.places(first.name)
        if self._request.home is Home.PRIVATE:
            make_directories(places.private_home)
        return OpenRun(
            self._request,
            choice,
            system,
            opened.views,
            opened.files,
            home,
            places.private_home,
            self._environment,
            self._passed(first.workspace),
            opened.remark,
        )

    def _passed(self, workspace: Path) -> tuple[str, ...]:
        config = self._store.locations.config
        if self._request.config is None and not os.path.lexists(config):
            return ()
        # Only for users who have a configuration: a run that joins another imports as little as it can.
        from sandboxfs.service.resolve_policy import read_config

        return read_config(config, self._request.config, self._request.current).variables_for(workspace)
