"""How does a run get views of its own?

The workspace's view and those of its companions are planned like any mount, then their daemons are started,
all at once. When another command takes the sandbox that was meant, it is planned again.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from fcntl import LOCK_SH, flock
from pathlib import Path

from sandboxfs.cli.planning import MountPlan, MountRequest, plan_mount
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.cli.preparing import prepare
from sandboxfs.cli.roots import Beside, check_workspace, sort_out
from sandboxfs.cli.run_request import RunRequest
from sandboxfs.cli.views import View
from sandboxfs.confine.home import secret_rules
from sandboxfs.control.advance import Waiting
from sandboxfs.control.launch import launch
from sandboxfs.errors import SandboxBusy
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Mode
from sandboxfs.state.store import MAX_NAME, Store, name_from

# So many commands may take the sandbox that was meant before one gives up.
_ATTEMPTS = 20


class Starting:
    """Plans and starts the views of one run.

    *at_own_path* when programs find each view where its workspace is.
    """

    def __init__(
        self,
        store: Store,
        request: RunRequest,
        environment: Mapping[str, str],
        home: Path,
        *,
        at_own_path: bool,
    ) -> None:
        self._store = store
        self._request = request
        self._environment = environment
        self._home = home
        self._at_own_path = at_own_path

    def start(self, undo: ExitStack, waiting: Waiting | None) -> tuple[list[View], tuple[Path, ...]]:
        """Start the views, the first by the daemon that is *waiting*; also return the files shown beside.

        *undo* lets go of the views.
        """
        for attempt in range(_ATTEMPTS):
            plans, beside = self._plans()
            try:
                return self._started(plans, undo, waiting), beside.files
            except SandboxBusy:
                # Another command was faster; there is another sandbox, or its name is taken now.
                if self._request.sandbox is not None or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _plans(self) -> tuple[list[MountPlan], Beside]:
        """Plan the workspace's view and those of its companions."""
        first = self._plan(self._first_request())
        workspace, home = first.record.workspace, self._home
        check_workspace(workspace, home, self._request.home)
        if home.is_relative_to(workspace):
            policy = replace(self._request.policy, more=secret_rules(home, workspace))
            first = self._plan(replace(self._first_request(), policy=policy))
        beside = sort_out(first.roots, workspace, home, self._request.home)
        requests = _companion_requests(self._store, first, beside, self._request.policy, self._request.config)
        plans = [self._plan(request) for request in requests]
        # Those of earlier runs may hold changes as well.
        known = () if first.previous is None else filter(self._store.exists, first.previous.companions)
        names = dict.fromkeys([*known, *(plan.record.name for plan in plans)])
        record = replace(first.record, companions=tuple(names), readable=beside.files)
        companions = [replace(plan, record=replace(plan.record, companion_of=record.name)) for plan in plans]
        return [replace(first, record=record), *companions], beside

    def _first_request(self) -> MountRequest:
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
            beside=True,
            new=request.new,
        )

    def _plan(self, request: MountRequest) -> MountPlan:
        plan = plan_mount(self._store, request, self._environment)
        self._request.check_log(plan.record)
        settings = plan.record.settings
        if self._at_own_path and settings.symlinks is Symlinks.GUARD:
            # The view is where the workspace was, and what leads out of it leads nowhere: links are as they
            # are.
            settings = replace(settings, symlinks=Symlinks.KEEP)
        return replace(plan, record=replace(plan.record, settings=settings))

    def _started(self, plans: list[MountPlan], undo: ExitStack, waiting: Waiting | None) -> list[View]:
        """Start the daemons of *plans*, all at once: each takes its time to import what it needs."""
        if len(plans) == 1:
            views = [_start_view(self._store, plans[0], waiting)]
            undo.callback(views[0].let_go)
            return views
        # Imported here: it takes longer than the rest of what a run usually needs.
        from concurrent.futures import ThreadPoolExecutor

        views = []
        with ThreadPoolExecutor(len(plans)) as pool:
            starting = [
                pool.submit(_start_view, self._store, plan, waiting if plan is plans[0] else None)
                for plan in plans
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


def _start_view(store: Store, plan: MountPlan, waiting: Waiting | None = None) -> View:
    """Serve the view of *plan* for as long as it is held, by the daemon that is *waiting* if any."""
    with ExitStack() as undo:
        lock = prepare(store, plan, undo)
        daemon = launch(store.locations, plan.record.name, lock, waiting, with_lifeline=True)
        undo.pop_all()
        lock.hand_over()
    if daemon.lifeline is not None:
        with suppress(OSError):
            flock(daemon.lifeline, LOCK_SH)
    return View(
        store,
        plan.record,
        daemon.pid,
        os.pidfd_open(daemon.pid),
        daemon.lifeline,
        joined=False,
        resumed=plan.previous is not None,
        warnings=plan.warnings,
    )


def _companion_requests(
    store: Store, plan: MountPlan, beside: Beside, policy: PolicyRequest, config: str | None
) -> list[MountRequest]:
    """Return what to ask for so that everything *beside* the workspace of *plan* is served."""
    taken: set[str] = set()
    requests = []
    places = [(root.path, name_from(root.path.name), root.mode) for root in beside.roots]
    if beside.home is not None:
        places.append((beside.home, "home", Mode.RW))
    for path, word, mode in places:
        more = policy.more
        if path == beside.home:
            more = (*more, *secret_rules(path, path))
        name = _companion_name(store, plan.record.name, path, word, taken)
        taken.add(name)
        wanted = replace(policy, mode=mode.value, preset=None, allows=(), roots=False, shared=True, more=more)
        requests.append(
            MountRequest(
                workspace=str(path),
                name=name,
                mountpoint=str(store.locations.default_mountpoint(name)),
                config=config,
                policy=wanted,
            )
        )
    return requests


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
