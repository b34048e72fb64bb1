"""What does a run consist of?

A confinement is chosen, views are started or joined, a world is built around them, the program runs in it,
and the views are let go. What was made is taken back in the reverse order, whatever happens.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandboxfs.cli.joining import join
from sandboxfs.cli.places import current_directory
from sandboxfs.cli.run_request import RunRequest
from sandboxfs.cli.temporary import make_temporary
from sandboxfs.cli.views import View
from sandboxfs.confine import becoming, landlock
from sandboxfs.confine.bubblewrap import World
from sandboxfs.confine.choice import Choice, Confinement, choose
from sandboxfs.confine.environment import GIVEN, Environment, environment_for, named_values
from sandboxfs.confine.home import NOWHERE, Home, check_private_home, home_directory
from sandboxfs.confine.starter import Orders
from sandboxfs.confine.supervisor import Outcome, Supervisor, ignored_signals
from sandboxfs.confine.system import System, find_system, interpreter_directory, name_service
from sandboxfs.control.advance import Waiting
from sandboxfs.paths import make_directories
from sandboxfs.state.store import Store
from sandboxfs.state.tree import remove_tree


@dataclass(frozen=True)
class Session:
    """An opened run: its views, the first of which is the workspace's, and what keeps programs in."""

    request: RunRequest
    choice: Choice
    system: System
    views: tuple[View, ...]
    files: tuple[Path, ...]
    home: Path
    private_home: Path
    # Made for this run where it cannot have a /tmp of its own, and removed with it.
    temporary: Path | None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def view(self) -> View:
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

    def program_environment(self) -> Environment:
        """The environment of programs, and what was withheld from it."""
        added = {"SANDBOXFS": "1", "SANDBOXFS_SANDBOX": self.name}
        if not self.request.network and self.choice.confinement is not Confinement.NONE:
            added["SANDBOXFS_NETWORK_DISABLED"] = "1"
        host = dict(self.environment) | {"HOME": str(self._home_inside()), "PWD": str(self.directory())}
        if self.choice.confinement is Confinement.NONE:
            # Nothing is withheld from a program that could look it up.
            kept = {name: value for name, value in host.items() if not name.startswith(GIVEN)}
            return Environment(kept | named_values(host, self.request.variables) | added)
        made = environment_for(host, self.request.variables, added, clear=self.request.clear_environment)
        if self.temporary is not None:
            made.variables.setdefault("TMPDIR", str(self.temporary))
        return made

    def directory(self) -> Path:
        """Where programs start: where the command was given, if they can see that."""
        here = current_directory()
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

    def run(self, command: list[str], meanwhile: Callable[[], object] | None = None) -> Outcome:
        """Run *command* to its end; *meanwhile* is called once, while it starts."""
        variables = self.program_environment().variables
        directory = self.directory()

        def orders(terminal: bool, foreground: bool) -> Orders:
            return Orders(
                list(map(os.fsencode, command)),
                {os.fsencode(name): os.fsencode(value) for name, value in variables.items()},
                os.fsencode(directory),
                terminal=terminal,
                foreground=foreground,
                ignored=ignored_signals(),
            )

        supervisor = Supervisor(
            orders,
            self._become(),
            [view.watch for view in self.views],
            relayed=self.choice.confinement is not Confinement.NONE,
        )
        return supervisor.run(meanwhile)

    def _become(self) -> becoming.Become:
        finding = self.choice.finding
        match self.choice.confinement:
            case Confinement.BUBBLEWRAP if finding.program is not None:
                return becoming.through_bubblewrap(
                    finding.program,
                    self._world(),
                    sizes=finding.sizes,
                    keep_from_abstract=self.request.network and finding.abi >= landlock.SCOPES_ABI,
                )
            case Confinement.LANDLOCK:
                around = becoming.Surroundings(self._make_temporary, self._remove_temporary)
                return becoming.within_landlock(self._fence(), finding.abi, around)
            case _:
                return becoming.unconfined()

    def _make_temporary(self) -> None:
        if self.temporary is not None:
            make_temporary(self.temporary)

    def _remove_temporary(self) -> None:
        if self.temporary is not None:
            remove_tree(self.temporary)

    def _world(self) -> World:
        writable = [(view.record.mountpoint, view.record.workspace) for view in self.views]
        if self.request.home is Home.PRIVATE:
            writable.append((self.private_home, self.home))
        names = name_service(self.system) if self.request.network else []
        return World(self.system, tuple(writable), (*self.files, *names), network=self.request.network)

    def _fence(self) -> landlock.Fence:
        whole = [view.record.mountpoint for view in self.views]
        if self.temporary is not None:
            whole.append(self.temporary)
        if self.request.home is Home.PRIVATE:
            whole.append(self.private_home)
        names = name_service(self.system) if self.request.network else []
        return landlock.Fence(
            tuple(whole),
            (*landlock.readable_places(self.system), *self.files, *names),
            network=self.request.network,
        )


class Runner:
    """Opens a run, and takes back what it made when the block ends."""

    def __init__(
        self,
        store: Store,
        request: RunRequest,
        environment: Mapping[str, str],
        waiting: Waiting | None = None,
    ) -> None:
        """Prepare; the daemon that is *waiting* is used if one is needed, and stays the caller's if not."""
        self._store = store
        self._request = request
        self._environment = dict(environment)
        self._waiting = waiting
        self._undo = ExitStack()

    def __enter__(self) -> Session:
        with ExitStack() as undo:
            session = self._open(undo)
            self._undo = undo.pop_all()
        return session

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def _open(self, undo: ExitStack) -> Session:
        system = find_system(interpreter_directory())
        choice = choose(self._request.confine, system, self._store.locations.runtime / "bubblewrap")
        home = home_directory(self._environment)
        if self._request.home is Home.PRIVATE and choice.confinement is Confinement.BUBBLEWRAP:
            check_private_home(home, system)
        views, files = self._views(choice, home, undo)
        places = self._store.places(views[0].record.name)
        private_home, temporary = places.home / "home", None
        if self._request.home is Home.PRIVATE:
            make_directories(private_home)
        if choice.confinement is Confinement.LANDLOCK:
            # Not made yet, so that it cannot be left behind.
            temporary = self._store.locations.runtime / "tmp" / os.urandom(8).hex()
        return Session(
            self._request,
            choice,
            system,
            tuple(views),
            files,
            home,
            private_home,
            temporary,
            self._environment,
        )

    def _views(self, choice: Choice, home: Path, undo: ExitStack) -> tuple[list[View], tuple[Path, ...]]:
        if self._request.sandbox is not None:
            joined = join(self._store, self._request.sandbox, self._request, home, undo)
            if joined is not None:
                return joined
        if self._waiting is None:
            self._waiting = Waiting.start()
            undo.callback(self._waiting.end_if_waiting)
        # Imported while the daemon imports: a run that joins another does without.
        from sandboxfs.cli.starting import Starting

        at_own_path = choice.confinement is Confinement.BUBBLEWRAP
        starting = Starting(self._store, self._request, self._environment, home, at_own_path=at_own_path)
        return starting.start(undo, self._waiting)
