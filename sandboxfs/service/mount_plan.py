"""Mount plan: what a mount would do, and whether it may.

A place that the kernel lists as a mount of ours is only looked at when it is known not to hang.

Everything is found out and checked here before anything is created. The answer is a plan: which sandbox,
made or resumed, from which workspace, at which mountpoint, under which policy.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.control import start_daemon
from sandboxfs.control.mount_table import Mount, MountTable, SandboxStatus, is_dead, observe
from sandboxfs.errors import MountFailed, SandboxBusy, UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.paths import nearest_existing, quoted
from sandboxfs.policy.config import WORKSPACE_VARIABLE, Allow, PolicyRequest, UserConfig
from sandboxfs.policy.model import Mode
from sandboxfs.service.resolve_policy import (
    ResolvedPolicy,
    asked_options,
    followed_before,
    options_in_force,
    read_config,
    resolve,
    with_options,
)
from sandboxfs.service.responder import check_asked
from sandboxfs.service.select import sandboxes_of
from sandboxfs.service.workspace import identity_for, user_path
from sandboxfs.state.disk import is_empty
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import holder
from sandboxfs.state.store import PolicyOptions, SandboxRecord, Store, check_name, load_family, name_from

_ELSEWHERE = "choose a place outside the workspace, or leave it out"


def check_mountpoint(store: Store, record: SandboxRecord, table: MountTable, *, mkdir: bool) -> Mount | None:
    """Raise `MountFailed` unless *record* can be mounted where it says.

    Returns the dead mount that has to be taken away first, if there is one. A missing mountpoint is fine
    when it is ours to make or *mkdir* says so.
    """
    place = record.mountpoint
    _check_relations(store, record)
    mount = table.at(place)
    if mount is not None:
        _refuse_living(store, mount)
        return mount
    try:
        if not (record.own_mountpoint and _is_covered(place)):
            _check_directory(place, may_make=mkdir or record.own_mountpoint)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _unusable(place, reason or "unusable") from error
    return None


def _unusable(place: Path, reason: str, hint: str | None = None) -> MountFailed:
    return MountFailed(f"cannot mount at {quoted(place)}: {reason}", hint=hint)


def _check_relations(store: Store, record: SandboxRecord) -> None:
    place = record.mountpoint
    if place == record.workspace:
        raise _unusable(place, "it is the workspace", _ELSEWHERE)
    if place.is_relative_to(record.workspace) and not record.own_mountpoint:
        # Once unmounted, what a program goes on writing there would land in the workspace.
        raise _unusable(place, f"it lies inside the workspace {quoted(record.workspace)}", _ELSEWHERE)
    if record.workspace.is_relative_to(place):
        raise _unusable(place, f"the workspace {quoted(record.workspace)} lies inside it")
    if store.locations.state.is_relative_to(place) or place.is_relative_to(store.locations.sandboxes):
        raise _unusable(place, f"it would cover the state directory {quoted(store.locations.state)}")


def _refuse_living(store: Store, mount: Mount) -> None:
    place = mount.mountpoint
    if not mount.ours:
        raise _unusable(place, f"already a mount ({mount.fstype})")
    for other in store.readable():
        if other.mountpoint == place and holder(store.places(other.name).lock) is not None:
            raise _unusable(
                place,
                f"already the mount of sandbox '{other.name}'",
                f"end it with 'sandboxfs unmount -s {other.name}'",
            )
    if not is_dead(mount):
        raise _unusable(
            place, f"already a mount ({mount.fstype})", f"end it with 'sandboxfs unmount {place}'"
        )


def _is_covered(place: Path) -> bool:
    """Whether *place* was left by a daemon that was killed: nobody could put anything there."""
    try:
        status = place.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) == 0 and status.st_uid == os.geteuid()
    )


def _check_directory(place: Path, *, may_make: bool) -> None:
    try:
        status = place.lstat()
    except FileNotFoundError:
        if not may_make:
            raise _unusable(place, "no such directory", "make it, or use --mkdir") from None
        parent = nearest_existing(place)
        if not parent.is_dir():
            raise _unusable(place, f"{quoted(parent)} is not a directory") from None
        if not os.access(parent, os.W_OK | os.X_OK):
            raise _unusable(place, f"cannot write in {quoted(parent)}") from None
        return
    if not stat.S_ISDIR(status.st_mode):
        raise _unusable(place, "not a directory")
    with os.scandir(place) as entries:
        if next(entries, None) is not None:
            raise _unusable(
                place, "the directory is not empty", "choose an empty directory, or a new one with --mkdir"
            )
    if not os.access(place, os.W_OK):
        raise _unusable(place, "permission denied")


STATE_HINT = "choose another place with SANDBOXFS_STATE_DIR"


@dataclass(frozen=True)
class MountRequest:
    """What the user asked for; None where nothing was said.

    *current* is the directory at which relative paths start, None for that of this process. With *new*, no
    sandbox is resumed. With *replaced*, the workspace may be another directory than the sandbox was made for.
    """

    workspace: str | None = None
    mountpoint: str | None = None
    name: str | None = None
    read_only: bool = False
    allow_other: bool = False
    mkdir: bool = False
    config: str | None = None
    policy: PolicyRequest = field(default_factory=PolicyRequest)
    new: bool = False
    replaced: bool = False
    current: str | None = None


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
    config = read_config(store.locations.config, request.config, request.current)
    _check_state(store.locations)
    if request.name is not None:
        check_name(request.name)
    for word, value in (("workspace", request.workspace), ("mountpoint", request.mountpoint)):
        if value == "":
            raise UsageError(f"the {word} is empty")
    named = store.load(request.name) if request.name is not None and store.exists(request.name) else None
    workspace = _workspace(store, request, config, environment, named, table)
    mountpoint = None if request.mountpoint is None else _resolved(table, request.mountpoint, request.current)
    previous = _previous(store, request, named, workspace.path, mountpoint)

    def follow(place: str) -> str:
        return followed_before(store, workspace.path, previous, place)

    options = _options(store, request, workspace.path, mountpoint, previous)
    policy = request.policy
    if not policy.shared:
        policy = with_options(policy, options, workspace.path, mountpoint, request.current)
        request = replace(request, read_only=options.read_only)
    if options.config is not None and request.config is None:
        config = read_config(store.locations.config, options.config, request.current)
    resolved = resolve(
        workspace.path, mountpoint, config, policy, workspace.environment, follow, request.current
    )
    if previous is not None and previous.companion_of is not None and not policy.shared:
        # Its rules were put together by the run that it belongs to.
        asked = resolved.settings.asked_programs
        resolved = replace(resolved, settings=replace(previous.settings, asked_programs=asked))
    record = _record(store, request, workspace, mountpoint, previous, resolved)
    record = replace(record, options=options, config=_config_file(request, options, previous))
    if previous is not None:
        refuse_if_held(observe(store, previous, table))
    stale = check_mountpoint(store, record, table, mkdir=request.mkdir)
    check_asked(record.settings.asked_programs, environment, request.current)
    _check_machine(request)
    warnings = (*resolved.warnings, *_interruption(store, previous), *_not_writable(record))
    return MountPlan(record, previous, stale, warnings, resolved.roots)


def _options(
    store: Store,
    request: MountRequest,
    workspace: Path,
    mountpoint: Path | None,
    previous: SandboxRecord | None,
) -> PolicyOptions:
    """Say under which options the sandbox is served; the policy of a companion is that of its run."""
    if request.policy.shared:
        return PolicyOptions()
    asked = asked_options(
        request.policy, request.config, workspace, mountpoint, request.current, read_only=request.read_only
    )
    if request.policy.replace:
        return asked
    places = None if previous is None else store.places(previous.name)
    is_empty_one = places is not None and is_empty(places.upper) and is_empty(places.commits)
    return options_in_force(asked, previous, replaceable=is_empty_one)


def _config_file(
    request: MountRequest, options: PolicyOptions, previous: SandboxRecord | None
) -> Path | None:
    """Return the configuration to which answers are written, None for the user's own."""
    named = request.config or options.config
    if named is not None:
        return user_path(named, request.current)
    return previous.config if previous is not None and previous.companion_of is not None else None


def _not_writable(record: SandboxRecord) -> tuple[str, ...]:
    """Say that commits will fail: of the workspace's directories only the top is looked at."""
    if record.mode == Mode.RO or os.access(record.workspace, os.W_OK, effective_ids=True):
        return ()
    from sandboxfs.hostfs.probe import obstacle

    try:
        with HostDir.at(record.workspace) as workspace:
            why = obstacle(workspace)
    except OSError:
        # A workspace that is still to be made.
        return ()
    return () if why is None else (f"cannot commit into {quoted(record.workspace)}: {why}",)


def _interruption(store: Store, previous: SandboxRecord | None) -> tuple[str, ...]:
    """Say that the workspace may be in the middle of a commit. Nothing is done about it by mounting."""
    if previous is None or not store.places(previous.name).commits.is_dir():
        return ()
    from sandboxfs.service.records import interruption

    found = interruption(store.places(previous.name))
    return () if found is None else (found,)


def refuse_if_held(sandbox: SandboxStatus) -> None:
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


def _resolved(table: MountTable, path: str, current: str | None) -> Path:
    try:
        return table.resolve(path if current is None else os.path.join(current, path))  # noqa: PTH118
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
        chosen = str(user_path(environment[WORKSPACE_VARIABLE], request.current))
        by = environment
    elif config.root is not None:
        chosen = str(config.root)
    else:
        default = store.locations.default_workspace
        if not os.path.lexists(default):
            return _Workspace(default)
        chosen = str(default)
    path = _resolved(table, chosen, request.current)
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
                hint="choose another name, or leave the workspace out",
            )
        return named
    if request.new:
        return None
    load_family(store, workspace)
    known = sandboxes_of(store, workspace)
    free = [record for record in known if holder(store.places(record.name).lock) is None]
    if mountpoint is None:
        # One that is held is refused later, with the reason: a second one wants a place or a name of its own.
        return next(iter((*free, *known)), None)
    here = [record for record in known if record.mountpoint == mountpoint]
    return next(iter((*here, *free)), None)


def _record(
    store: Store,
    request: MountRequest,
    workspace: _Workspace,
    mountpoint: Path | None,
    previous: SandboxRecord | None,
    resolved: ResolvedPolicy,
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
        identity=identity_for(
            workspace.path,
            previous,
            None if previous is None else store.places(previous.name),
            replaced=request.replaced,
        ),
        settings=resolved.settings,
    )
    if previous is None:
        return fresh
    return replace(
        fresh,
        created=previous.created,
        companion_of=previous.companion_of,
        companions=previous.companions,
        readable=previous.readable,
        # What a companion covers has a view of its own, with rules of its own.
        covered=() if previous.companion_of is None else previous.covered,
    )


def _check_machine(request: MountRequest) -> None:
    privileged = start_daemon.is_privileged()
    start_daemon.check_device()
    start_daemon.check_helper(privileged=privileged)
    if request.allow_other:
        start_daemon.check_allow_other(privileged=privileged)


def _check_state(locations: Locations) -> None:
    state = nearest_existing(locations.sandboxes)
    if not state.is_dir():
        raise MountFailed(f"cannot use state directory {quoted(state)}: not a directory", hint=STATE_HINT)
    if not os.access(state, os.R_OK | os.W_OK | os.X_OK):
        raise MountFailed(f"cannot write in state directory {quoted(state)}", hint=STATE_HINT)
