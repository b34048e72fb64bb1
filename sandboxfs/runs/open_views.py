"""Opening the views of a run: a sandbox chosen or named, joined or started.

The world of the run before it: the same views, under the policy that they were mounted with, and the same
files beside them. What it asks for besides is given when that needs no other policy and no further daemon,
else refused: nothing that was asked for is left out silently.

The run lock of the sandbox is held from the choice to the end of the run. When another command takes the
sandbox that was chosen, another one is chosen.

The workspace's view and those of its companions are planned like any mount, then their daemons are started,
all at once. What is for that is imported while the daemon imports: a run that joins another does without.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from fcntl import LOCK_SH, flock
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.confine.home import secret_rules, secrets_of_the_machine
from sandboxfs.confine.mounts import System
from sandboxfs.control.mount_table import MountTable
from sandboxfs.control.prestart import WaitingDaemon
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import quoted
from sandboxfs.policy.config import Allow, PolicyRequest, Symlinks
from sandboxfs.policy.model import Mode
from sandboxfs.runs.run_views import (
    UNCHANGED,
    Root,
    RunRequest,
    RunRoots,
    RunView,
    check_workspace,
    join_view,
    sort_out,
)
from sandboxfs.service.resolve_policy import asked_options, outside_allows, says_the_same
from sandboxfs.state.lock import share
from sandboxfs.state.store import MAX_NAME, SandboxRecord, Store, name_from

if TYPE_CHECKING:
    from sandboxfs.service.mount_plan import MountPlan, MountRequest


def join(
    store: Store, name: str, request: RunRequest, home: Path, undo: ExitStack
) -> tuple[list[RunView], tuple[Path, ...]] | None:
    """Join the views of the sandbox called *name*, with the files shown beside; None when it is not served.

    *undo* lets go of them. Raises `UsageError` for what cannot be had while it is served.
    """
    first = join_view(store, name)
    if first is None:
        return None
    undo.callback(first.let_go)
    outside = _beside_the_policy(first.record, request)
    check_workspace(first.record.workspace, home, request.home)
    views = [first]
    for companion in filter(store.exists, first.record.companions):
        view = join_view(store, companion)
        if view is not None:
            undo.callback(view.let_go)
            views.append(view)
    beside = sort_out(outside, first.record.workspace, home, request.home)
    for root in beside.roots:
        _check_served(name, views[1:], root.path, root.mode.value)
    if beside.home is not None:
        _check_served(name, views[1:], beside.home, None)
    for file in beside.files:
        within = any(view.record.workspace in file.parents for view in views)
        if within and file not in first.record.readable:
            raise _its_policy(name)
    # Those of the run before may be gone since.
    known = [path for path in first.record.readable if path.exists()]
    return views, tuple(dict.fromkeys((*known, *beside.files)))


def _beside_the_policy(record: SandboxRecord, request: RunRequest) -> list[Allow]:
    """The places outside the workspace that *request* allows; refuse whatever would change the policy."""
    if request.place is not None and not _is(request.place, record.workspace):
        raise UsageError(
            f"name '{record.name}' is in use by a sandbox of {quoted(record.workspace)}",
            hint="leave out --workspace",
        )
    policy = request.policy
    asked = asked_options(
        policy, request.config, record.workspace, record.mountpoint, request.current, read_only=False
    )
    programs = record.settings.asked_programs
    # The token is that of the mount.
    if programs != programs.given(policy.ask_command, policy.ask_url):
        raise _its_policy(record.name)
    besides = replace(
        policy,
        mode=None,
        preset=None,
        rules=(),
        allows=(),
        symlinks=None,
        ask_command=None,
        ask_url=None,
    )
    if besides != UNCHANGED or not says_the_same(asked, record.options):
        raise _its_policy(record.name)
    return outside_allows(policy.allows, record.workspace, record.mountpoint, request.current)


def _is(given: str, workspace: Path) -> bool:
    try:
        return MountTable.read().resolve(given) == workspace
    except (OSError, ValueError):
        return False


def _its_policy(name: str) -> UsageError:
    return UsageError(
        f"sandbox '{name}' is mounted already: its policy is that of its mount",
        hint="leave out the options that differ, unmount it first, or use another sandbox with --new",
    )


def _check_served(name: str, companions: Sequence[RunView], path: Path, mode: str | None) -> None:
    """Refuse a directory that is not served beside the sandbox already, in this *mode* unless it is None."""
    for view in companions:
        if view.record.workspace == path:
            if mode in (None, view.record.mode):
                return
            raise UsageError(
                f"sandbox '{name}' is mounted already, with {quoted(path)} as '{view.record.mode}'",
                hint="leave the mode as it is, or unmount it first",
            )
    raise UsageError(
        f"sandbox '{name}' is mounted already, without {quoted(path)}",
        hint="a directory is served from the first run on: unmount the sandbox first, or use --new",
    )


# So many commands may take the sandbox that was chosen before one gives up.
_ATTEMPTS = 20


@dataclass(frozen=True)
class OpenedViews:
    """The *views* of a run, the workspace's first, and the *files* shown beside them.

    *remark* says which sandbox is used, where that is not plain.
    """

    views: tuple[RunView, ...]
    files: tuple[Path, ...]
    remark: str | None = None


@dataclass
class ViewOpener:
    """Opens the views of *request*; the first is served by the daemon that is *waiting*, if one is needed.

    *at_own_path* when programs find each view where its workspace is.
    """

    store: Store
    request: RunRequest
    environment: Mapping[str, str]
    home: Path
    system: System
    at_own_path: bool
    waiting: WaitingDaemon | None

    def open(self, undo: ExitStack) -> OpenedViews:
        """Open the views; *undo* lets go of them."""
        for attempt in range(_ATTEMPTS):
            with ExitStack() as taken:
                try:
                    request, remark = self._chosen(taken)
                    found = replace(self._opened(request, taken, undo), remark=remark)
                except (SandboxBusy, NoSuchSandbox):
                    # Another command was faster.
                    if self.request.sandbox is not None or attempt == _ATTEMPTS - 1:
                        raise
                else:
                    undo.push(taken.pop_all())
                    return found
        raise AssertionError("the last attempt returns or raises")

    def _chosen(self, undo: ExitStack) -> tuple[RunRequest, str | None]:
        """Say which sandbox is used, and hold its run lock where it is there already."""
        request = self.request
        if request.sandbox is not None and self.store.exists(request.sandbox):
            if request.new:
                raise UsageError(f"there is a sandbox '{request.sandbox}' already")
            undo.callback(os.close, share(self.store.places(request.sandbox)))
        if request.sandbox is not None or request.new or request.place is None:
            return request, None
        # Imported here: a run in a sandbox that is named does without.
        from sandboxfs.service.select import project_sandbox

        try:
            workspace = MountTable.read().resolve(request.place)
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot use {quoted(request.place)}: {error}") from error
        project = project_sandbox(self.store, workspace)
        if project.sandbox is None or project.lock is None:
            return replace(request, new=True), project.remark
        undo.callback(os.close, project.lock)
        return replace(request, sandbox=project.sandbox.name), project.remark

    def _opened(self, request: RunRequest, undo: ExitStack, finally_: ExitStack) -> OpenedViews:
        """Join the views of *request*, or start them; *finally_* is there for all attempts."""
        if request.sandbox is not None and not request.new:
            joined = join(self.store, request.sandbox, request, self.home, undo)
            if joined is not None:
                views, files = joined
                return OpenedViews(tuple(views), files)
        if self.waiting is None:
            self.waiting = WaitingDaemon.start()
            finally_.callback(self.waiting.end_if_waiting)
        starting = ViewStarter(
            self.store, request, self.environment, self.home, self.system, at_own_path=self.at_own_path
        )
        views, files = starting.start(undo, self.waiting)
        if not views[0].resumed:
            undo.callback(os.close, share(self.store.places(views[0].record.name)))
        return OpenedViews(tuple(views), files)


# Starting them


class ViewStarter:
    """Plans and starts the views of one run.

    *at_own_path* when programs find each view where its workspace is; then what they find of *system* inside
    a view is mounted there.
    """

    def __init__(
        self,
        store: Store,
        request: RunRequest,
        environment: Mapping[str, str],
        home: Path,
        system: System,
        *,
        at_own_path: bool,
    ) -> None:
        self._store = store
        self._request = request
        self._environment = environment
        self._home = home
        self._system = system
        self._at_own_path = at_own_path

    def start(self, undo: ExitStack, waiting: WaitingDaemon | None) -> tuple[list[RunView], tuple[Path, ...]]:
        """Start the views, the first by the daemon that is *waiting*; also return the files shown beside.

        *undo* lets go of the views. Raises `SandboxBusy` when another command was faster.
        """
        plans, beside = self._plans()
        return self._started(plans, undo, waiting), beside.files

    def start_companion(self, first: SandboxRecord, root: Root, waiting: WaitingDaemon) -> RunView:
        """Have the daemon *waiting* serve *root* beside the sandbox of *first*, which is served already.

        It gets the rules that it would have had from the beginning.
        """
        options = first.options
        policy = replace(self._request.policy, rules=options.rules, symlinks=options.symlinks)
        self._request = replace(self._request, policy=policy, config=options.config)
        (request,) = self._companion_requests(first.name, RunRoots((root,), first.readable))
        plan = self._plan(request)
        # What was said on the command line of the first run is in its record alone.
        settings = replace(
            plan.record.settings,
            audit=first.settings.audit,
            ask_timeout=first.settings.ask_timeout,
            asked_programs=first.settings.asked_programs,
        )
        record = replace(plan.record, companion_of=first.name, settings=settings)
        (plan,) = self._covered([replace(plan, record=record)])
        if plan.record.name not in first.companions:
            # Before it is there: what is known and is not there is passed over.
            self._store.save(replace(first, companions=(*first.companions, plan.record.name)))
        return self._start_view(plan, waiting)

    def _plans(self) -> tuple[list["MountPlan"], RunRoots]:
        """Plan the workspace's view and those of its companions."""
        first = self._plan(self._first_request())
        workspace, home = first.record.workspace, self._home
        check_workspace(workspace, home, self._request.home)
        more = secrets_of_the_machine(self._system, workspace)
        if home.is_relative_to(workspace):
            more += secret_rules(home, workspace)
        if more:
            policy = replace(self._request.policy, more=more)
            first = self._plan(replace(self._first_request(), policy=policy))
        # What is served beside it is served under the same rules, those of an earlier run too.
        options = first.record.options
        policy = replace(self._request.policy, rules=options.rules, symlinks=options.symlinks)
        self._request = replace(self._request, policy=policy, config=options.config)
        beside = sort_out(first.roots, workspace, home, self._request.home)
        plans = [self._plan(request) for request in self._companion_requests(first.record.name, beside)]
        # Those of earlier runs may hold changes as well.
        known = () if first.previous is None else filter(self._store.exists, first.previous.companions)
        names = dict.fromkeys([*known, *(plan.record.name for plan in plans)])
        record = replace(first.record, companions=tuple(names), readable=beside.files)
        companions = [replace(plan, record=replace(plan.record, companion_of=record.name)) for plan in plans]
        return self._covered([replace(first, record=record), *companions]), beside

    def _covered(self, plans: list["MountPlan"]) -> list["MountPlan"]:
        """Have each view show nothing of what another view, or the system, is mounted over."""
        others = [plan.record.workspace for plan in plans]
        others += self._system.directories if self._at_own_path else ()
        covered = []
        for plan in plans:
            inside = {place for place in others if plan.record.workspace in place.parents}
            outermost = tuple(sorted(place for place in inside if inside.isdisjoint(place.parents)))
            record = replace(plan.record, covered=outermost)
            warnings = (*plan.warnings, *self._left_out(record))
            covered.append(replace(plan, record=record, warnings=warnings))
        return covered

    def _left_out(self, record: SandboxRecord) -> Iterator[str]:
        """Tell of changes that an earlier run made in what is covered now."""
        upper = self._store.places(record.name).upper
        if not record.covered or not upper.is_dir():
            return
        with HostDir.at(upper) as top:
            for place in record.covered:
                with suppress(OSError):
                    above, _, name = os.fsencode(place.relative_to(record.workspace)).rpartition(b"/")
                    # Not opened: it may be a link, a file or a deletion.
                    with top.descend(above) as directory:
                        if directory.stat(name) is None:
                            continue
                    yield (
                        f"sandbox '{record.name}' has changes of {quoted(place)} from before it had a view "
                        "of its own: they are not shown, reviewed or committed as long as it has"
                    )

    def _first_request(self) -> "MountRequest":
        from sandboxfs.service.mount_plan import MountRequest

        request = self._request
        mountpoint = None
        if request.sandbox is not None:
            mountpoint = str(self._store.locations.default_mountpoint(request.sandbox))
        return MountRequest(
            workspace=request.workspace,
            mountpoint=mountpoint,
            name=request.sandbox,
            config=request.config,
            policy=request.policy,
            new=request.new,
            current=request.current,
        )

    def _plan(self, request: "MountRequest") -> "MountPlan":
        from sandboxfs.service.mount_plan import plan_mount

        plan = plan_mount(self._store, request, self._environment)
        settings = plan.record.settings
        if self._at_own_path and settings.symlinks is Symlinks.GUARD:
            # The view is where the workspace was, and what leads out of it leads nowhere: links are as they
            # are.
            settings = replace(settings, symlinks=Symlinks.KEEP)
        return replace(plan, record=replace(plan.record, settings=settings))

    def _companion_requests(self, first: str, beside: RunRoots) -> list["MountRequest"]:
        """Return what to ask for so that everything *beside* the sandbox *first* is served."""
        from sandboxfs.service.mount_plan import MountRequest

        taken: set[str] = set()
        requests = []
        places = [(root.path, name_from(root.path.name), root.mode) for root in beside.roots]
        if beside.home is not None:
            places.append((beside.home, "home", Mode.RW))
        for path, word, mode in places:
            name = _companion_name(self._store, first, path, word, taken)
            taken.add(name)
            requests.append(
                MountRequest(
                    workspace=str(path),
                    name=name,
                    mountpoint=str(self._store.locations.default_mountpoint(name)),
                    config=self._request.config,
                    policy=self._companion_policy(path, mode, beside),
                    current=self._request.current,
                )
            )
        return requests

    def _companion_policy(self, path: Path, mode: Mode, beside: RunRoots) -> PolicyRequest:
        policy = self._request.policy
        more = (*policy.more, *secrets_of_the_machine(self._system, path))
        if path == beside.home:
            more += secret_rules(path, path)
        # A file that is shown inside another view is shown by it, as a rule says.
        allows = tuple(f"{file}:ro" for file in beside.files if file.is_relative_to(path))
        return replace(
            policy, mode=mode.value, preset=None, allows=allows, roots=False, shared=True, more=more
        )

    def _started(
        self, plans: list["MountPlan"], undo: ExitStack, waiting: WaitingDaemon | None
    ) -> list[RunView]:
        """Start the daemons of *plans*, all at once: each takes its time to import what it needs."""
        if len(plans) == 1:
            views = [self._start_view(plans[0], waiting)]
            undo.callback(views[0].let_go)
            return views
        # Imported here: it takes longer than the rest of what a run usually needs.
        from concurrent.futures import ThreadPoolExecutor

        views = []
        with ThreadPoolExecutor(len(plans)) as pool:
            starting = [
                pool.submit(self._start_view, plan, waiting if plan is plans[0] else None) for plan in plans
            ]
        failures: list[BaseException] = []
        for one in starting:
            try:
                view = one.result()
            except BaseException as error:
                failures.append(error)
            else:
                undo.callback(view.let_go)
                views.append(view)
        if failures:
            raise failures[0]
        return views

    def _start_view(self, plan: "MountPlan", waiting: WaitingDaemon | None) -> RunView:
        """Serve the view of *plan* for as long as it is held, by the daemon that is *waiting* if any."""
        from sandboxfs.control.start_daemon import launch
        from sandboxfs.service.mount import prepare
        from sandboxfs.service.responder import begin_to_answer, start_responder

        store, name = self._store, plan.record.name
        with ExitStack() as undo:
            lock = prepare(store, plan, undo)
            responder = start_responder(store, plan.record, self._environment, self._request.current)
            if responder is not None:
                undo.callback(responder.close)
            daemon = launch(store.locations, name, lock, waiting, with_lifeline=True)
            undo.pop_all()
            lock.hand_over()
        if daemon.lifeline is not None:
            with suppress(OSError):
                flock(daemon.lifeline, LOCK_SH)
        view = RunView(
            store,
            plan.record,
            daemon.pid,
            os.pidfd_open(daemon.pid),
            daemon.lifeline,
            joined=False,
            resumed=plan.previous is not None,
            warnings=plan.warnings,
        )
        try:
            # Before a program starts: its first question must find somebody.
            view.warnings += begin_to_answer(responder, daemon.pid)
        except BaseException:
            view.let_go()
            raise
        return view


def _companion_name(store: Store, name: str, path: Path, word: str, taken: set[str]) -> str:
    """The companion that served *path* before, else a name that is free."""
    for record in store.readable():
        if record.companion_of == name and record.workspace == path and record.name not in taken:
            return record.name
    wanted = f"{name[: MAX_NAME // 2]}.{word}"[:MAX_NAME]
    free, number = store.free_name(wanted), 1
    while free in taken:
        number += 1
        free = store.free_name(f"{wanted[: MAX_NAME - 4]}-{number}")
    return free
