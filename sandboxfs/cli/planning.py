"""What would a `mount` command do, and may it?

Everything is found out and checked here before anything is created. The answer is a plan: which sandbox,
made or resumed, from which workspace, at which mountpoint, under which policy.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.cli.mountpoints import check_mountpoint
from sandboxfs.cli.places import user_path
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.cli.resolving import Resolved, read_config, resolve
from sandboxfs.control import machine
from sandboxfs.control.mounts import Mount, MountTable
from sandboxfs.control.sandboxes import Sandbox, observe
from sandboxfs.errors import MountFailed, SandboxBusy, UsageError
from sandboxfs.paths import nearest_existing, quoted
from sandboxfs.policy.config import WORKSPACE_VARIABLE, Allow, UserConfig
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import holder
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store, check_name, name_from

STATE_HINT = "choose another place with SANDBOXFS_STATE_DIR"


@dataclass(frozen=True)
class MountRequest:
    """What the user asked for; None where nothing was said.

    With *beside*, a sandbox that is in use is left alone and another one found or made; with *new*, none is
    resumed.
    """

    workspace: str | None = None
    mountpoint: str | None = None
    name: str | None = None
    read_only: bool = False
    allow_other: bool = False
    mkdir: bool = False
    config: str | None = None
    policy: PolicyRequest = field(default_factory=PolicyRequest)
    beside: bool = False
    new: bool = False


@dataclass(frozen=True)
class MountPlan:
    """What to do: *previous* is the record of a sandbox to resume, *stale* a dead mount to take away.

    *warnings* are about a policy that may not be meant as it is written, and about a commit that was
    interrupted; *roots* are the places outside the workspace that the policy allows.
    """

    record: SandboxRecord
    previous: SandboxRecord | None
    stale: Mount | None
    warnings: tuple[str, ...] = ()
    roots: tuple[Allow, ...] = ()


@dataclass(frozen=True)
class _Workspace:
    """The directory to work on; *environment* is what chose it, empty when it was not the environment."""

    path: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def plan_mount(store: Store, request: MountRequest, environment: Mapping[str, str]) -> MountPlan:
    """Decide what *request* means and check all of it; raise without having created anything."""
    table = MountTable.read()
    config = read_config(store.locations.config, request.config)
    _check_state(store.locations)
    if request.name is not None:
        check_name(request.name)
    for word, value in (("workspace", request.workspace), ("mountpoint", request.mountpoint)):
        if value == "":
            raise UsageError(f"the {word} is empty")
    named = store.load(request.name) if request.name is not None and store.exists(request.name) else None
    workspace = _workspace(store, request, config, environment, named, table)
    mountpoint = None if request.mountpoint is None else _resolved(table, request.mountpoint)
    previous = _previous(store, request, named, workspace.path, mountpoint)

    def follow(place: str) -> str:
        # Imported here: most mounts name no path.
        from sandboxfs.cli.following import followed_before

        return followed_before(store, workspace.path, previous, place)

    resolved = resolve(workspace.path, mountpoint, config, request.policy, workspace.environment, follow)
    record = _record(store, request, workspace, mountpoint, previous, resolved)
    if previous is not None:
        refuse_if_held(observe(store, previous, table))
    stale = check_mountpoint(store, record, table, mkdir=request.mkdir)
    _check_machine(request)
    warnings = (*resolved.warnings, *_interruption(store, previous))
    return MountPlan(record, previous, stale, warnings, resolved.roots)


def _interruption(store: Store, previous: SandboxRecord | None) -> tuple[str, ...]:
    """Say that the workspace may be in the middle of a commit. Nothing is done about it by mounting."""
    if previous is None or not store.places(previous.name).commits.is_dir():
        return ()
    from sandboxfs.cli.record_list import interruption

    found = interruption(store.places(previous.name))
    return () if found is None else (found,)


def refuse_if_held(sandbox: Sandbox) -> None:
    """Raise `SandboxBusy` when a process holds *sandbox*, saying where and which."""
    if not sandbox.held:
        return
    by = "another process" if sandbox.pid is None else f"process {sandbox.pid}"
    details = {"name": sandbox.name, "mountpoint": str(sandbox.record.mountpoint), "pid": sandbox.pid}
    if sandbox.state == "mounted":
        raise SandboxBusy(
            f"sandbox '{sandbox.name}' is already mounted at {quoted(sandbox.record.mountpoint)} by {by}",
            hint=f"end it with 'sandboxfs unmount -s {sandbox.name}', or make another sandbox with --name",
            details=details,
        )
    raise SandboxBusy(
        f"sandbox '{sandbox.name}' is held by {by}",
        hint="it is being started, changed, or was detached and still serves files that are open",
        details=details,
    )


def _resolved(table: MountTable, path: str) -> Path:
    try:
        return table.resolve(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use {quoted(path)}: {error}") from error


def _workspace(
    store: Store,
    request: MountRequest,
    config: UserConfig,
    environment: Mapping[str, str],
    named: SandboxRecord | None,
    table: MountTable,
) -> _Workspace:
    """Choose the workspace: command line, the named sandbox's own, environment, configuration, default."""
    by: Mapping[str, str] = {}
    if request.workspace is not None:
        chosen = request.workspace
    elif named is not None:
        chosen = str(named.workspace)
    elif environment.get(WORKSPACE_VARIABLE):
        chosen = str(user_path(environment[WORKSPACE_VARIABLE]))
        by = environment
    elif config.root is not None:
        chosen = str(config.root)
    else:
        default = store.locations.default_workspace
        if not os.path.lexists(default):
            return _Workspace(default)
        chosen = str(default)
    path = _resolved(table, chosen)
    _check_workspace(store, path)
    return _Workspace(path, by)


def _check_workspace(store: Store, path: Path) -> None:
    try:
        is_directory = path.is_dir()
        exists = is_directory or os.path.lexists(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use workspace {quoted(path)}: {error}") from error
    if not exists:
        raise UsageError(f"cannot use workspace {quoted(path)}: no such directory")
    if not is_directory:
        raise UsageError(f"cannot use workspace {quoted(path)}: not a directory")
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"cannot use workspace {quoted(path)}: permission denied")
    if path == store.locations.state or path.is_relative_to(store.locations.sandboxes):
        raise UsageError(
            f"cannot use workspace {quoted(path)}: it is where sandboxes are kept",
            hint="choose another workspace, or another place for sandboxes with SANDBOXFS_STATE_DIR",
        )


def _previous(
    store: Store, request: MountRequest, named: SandboxRecord | None, workspace: Path, mountpoint: Path | None
) -> SandboxRecord | None:
    """Find the sandbox that *request* resumes, if it does."""
    if request.name is not None:
        if named is not None and named.workspace != workspace:
            raise UsageError(
                f"name '{request.name}' is in use by a sandbox of {quoted(named.workspace)}",
                hint="leave out --workspace" if request.beside else "choose another --name",
            )
        return named
    if request.new:
        return None
    # A sandbox that cannot be read may be the very one that is meant.
    family = re.compile(re.escape(name_from(workspace.name)) + r"(-\d+)?")
    for name in store.names():
        if family.fullmatch(name):
            store.load(name)
    for record in store.readable():
        wanted = mountpoint or store.locations.default_mountpoint(record.name)
        if record.workspace == workspace and record.mountpoint == wanted and record.companion_of is None:
            if request.beside and holder(store.places(record.name).lock) is not None:
                continue
            return record
    return None


def _record(
    store: Store,
    request: MountRequest,
    workspace: _Workspace,
    mountpoint: Path | None,
    previous: SandboxRecord | None,
    resolved: Resolved,
) -> SandboxRecord:
    """Write down the sandbox as it will be once it is mounted."""
    if previous is not None:
        name = previous.name
        mountpoint = mountpoint or previous.mountpoint
    else:
        name = request.name or store.free_name(name_from(workspace.path.name))
        mountpoint = mountpoint or store.locations.default_mountpoint(name)
    fresh = SandboxRecord(
        name=name,
        workspace=workspace.path,
        mountpoint=mountpoint,
        created=datetime.now(UTC).replace(microsecond=0),
        read_only=request.read_only,
        allow_other=request.allow_other,
        own_mountpoint=mountpoint == store.locations.default_mountpoint(name),
        settings=resolved.settings,
    )
    return fresh if previous is None else replace(fresh, created=previous.created)


def _check_machine(request: MountRequest) -> None:
    privileged = machine.is_privileged()
    machine.check_device()
    machine.check_helper(privileged=privileged)
    if request.allow_other:
        machine.check_allow_other(privileged=privileged)


def _check_state(locations: Locations) -> None:
    state = nearest_existing(locations.sandboxes)
    if not state.is_dir():
        raise MountFailed(f"cannot use state directory {quoted(state)}: not a directory", hint=STATE_HINT)
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        raise MountFailed(f"cannot write in state directory {quoted(state)}", hint=STATE_HINT)
