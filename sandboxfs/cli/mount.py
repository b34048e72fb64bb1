"""`sandboxfs mount`: serve a view of a workspace.

The plan is checked first; then everything is made in an order in which each step can be taken back, so that
a command that fails leaves nothing behind.
"""

import argparse
import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.mountpoints import check_mountpoint
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.planning import STATE_HINT, MountPlan, MountRequest, plan_mount, refuse_if_held
from sandboxfs.cli.resolving import PolicyRequest
from sandboxfs.control.launch import become, launch
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import observe
from sandboxfs.control.unmounting import detach_dead
from sandboxfs.errors import DaemonLost, MountFailed, SandboxBusy
from sandboxfs.layers import probe
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.policy.builtin import Preset
from sandboxfs.policy.config import AuditLevel, Symlinks
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import SandboxLock
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store

DESCRIPTION = """\
Serve a copy-on-write view of WORKSPACE at MOUNTPOINT and return when it is ready.
Programs see the workspace's files there and may change them; every change is kept in
the sandbox and nothing reaches the workspace. The mountpoint is printed on stdout.

Without WORKSPACE it is $SANDBOXFS_WORKSPACE, else 'root' of the configuration, else a
directory of sandboxfs' own, made when missing. Without MOUNTPOINT one is made in the
runtime directory. Mounting the same workspace at the same place again, or by the same
--name, resumes the sandbox with all its changes.

What programs may do in the view is put together anew at every mount, from the options
here, the project's .sandboxfs.toml, the configuration and built-in rules; the first
rule that matches decides. 'sandboxfs why PATH' explains."""

EXAMPLES = [
    "sandboxfs mount ~/projects/app /mnt/app",
    "sandboxfs mount --mkdir --name trial ~/projects/app ./view",
    'cd "$(sandboxfs mount ~/projects/app)"',
    "sandboxfs mount --rule '**/.env*=hide' --rule 'vendor/**=ro' ~/projects/app /mnt/app",
    "sandboxfs mount --mode ro --allow docs ~/projects/app /mnt/app",
]


class Arguments(argparse.Namespace):
    workspace: str | None
    mountpoint: str | None
    foreground: bool
    name: str | None
    allow_other: bool
    read_only: bool
    mkdir: bool
    mode: str | None
    preset: str | None
    rule: list[str]
    allow: list[str]
    config: str | None
    symlinks: str | None
    log_level: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("mount", DESCRIPTION, EXAMPLES, [SandboxBusy, MountFailed, DaemonLost])
    made.add_argument("workspace", nargs="?", metavar="WORKSPACE", help="the directory to work on")
    made.add_argument(
        "mountpoint", nargs="?", metavar="MOUNTPOINT", help="an empty directory to show the view in"
    )
    made.add_argument("-f", "--foreground", action="store_true", help="stay and serve; Ctrl-C unmounts")
    made.add_argument("--name", metavar="NAME", help="the sandbox's name; default: made from the workspace's")
    made.add_argument(
        "--allow-other", action="store_true", help="let other users in, as file permissions say"
    )
    made.add_argument("--read-only", action="store_true", help="let nothing be changed, not even in the view")
    made.add_argument("--mkdir", action="store_true", help="make MOUNTPOINT when it is missing")
    _add_policy_options(made)
    return made


def _add_policy_options(made: Parser) -> None:
    policy = made.add_argument_group("policy")
    policy.add_argument(
        "--mode", choices=("ro", "rw"), help="what paths that no rule names may be used for; default: rw"
    )
    policy.add_argument(
        "--preset", choices=[one.value for one in Preset], help="a policy in one word; --mode overrides it"
    )
    policy.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="PATTERN=MODE",
        help="a rule: hide, deny, ro or rw; several are asked in the order given",
    )
    policy.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATH[:MODE]",
        help="allow one path in the workspace; default: rw; asked after all --rule",
    )
    policy.add_argument("--config", metavar="FILE", help="read this file instead of the user's configuration")
    policy.add_argument(
        "--symlinks",
        choices=[one.value for one in Symlinks],
        help="what becomes of links that lead out of the view",
    )
    policy.add_argument(
        "--log-level",
        choices=[one.value for one in AuditLevel],
        help="what the audit log holds; default: writes",
    )


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    request = MountRequest(
        workspace=arguments.workspace,
        mountpoint=arguments.mountpoint,
        name=arguments.name,
        read_only=arguments.read_only,
        allow_other=arguments.allow_other,
        mkdir=arguments.mkdir,
        config=arguments.config,
        policy=PolicyRequest(
            mode=arguments.mode,
            preset=arguments.preset,
            rules=tuple(arguments.rule),
            allows=tuple(arguments.allow),
            symlinks=arguments.symlinks,
            log_level=arguments.log_level,
        ),
    )
    plan = plan_mount(store, request, os.environ)
    if not arguments.json:
        output.warnings(plan.warnings)
    with ExitStack() as undo:
        lock = _prepare(store, plan, undo)
        if arguments.foreground:
            _stay(store, plan, lock, as_json=arguments.json)
        pid = launch(store.locations, plan.record.name, lock)
        undo.pop_all()
        lock.hand_over()
    if not arguments.json:
        verb = "made" if plan.previous is None else "resumed"
        output.note(f"{verb} sandbox '{plan.record.name}' of {quoted(plan.record.workspace)}")
    output.data(_announcement(plan, pid, as_json=arguments.json))
    return 0


def _prepare(store: Store, plan: MountPlan, undo: ExitStack) -> SandboxLock:
    """Make everything that the daemon needs; *undo* takes it back."""
    record = plan.record
    try:
        undo.callback(remove_directories, make_directories(store.locations.sandboxes))
        if plan.previous is None:
            _check_filesystem(store.locations.sandboxes)
        if record.workspace == store.locations.default_workspace:
            undo.callback(remove_directories, make_directories(record.workspace))
        lock = _hold(store, plan, undo)
        if plan.stale is not None:
            detach_dead(plan.stale)
            check_mountpoint(store, record, MountTable.read(), mkdir=True)
        mode = 0o700 if record.own_mountpoint else 0o777
        undo.callback(remove_directories, make_directories(record.mountpoint, mode))
        undo.callback(_detach_remains, record.mountpoint)
    except OSError as error:
        at = quoted(error.filename) if error.filename else "the state directory"
        raise MountFailed(f"cannot prepare the sandbox: {at}: {error.strerror}", hint=STATE_HINT) from error
    return lock


def _check_filesystem(directory: Path) -> None:
    if not probe.user_xattrs(directory):
        raise MountFailed(
            f"the filesystem of the state directory {quoted(directory)} has no user extended attributes",
            hint=STATE_HINT,
        )


def _hold(store: Store, plan: MountPlan, undo: ExitStack) -> SandboxLock:
    """Create or take the sandbox of *plan*, and write its record."""
    name = plan.record.name
    if plan.previous is None:
        lock = store.create(plan.record)
        undo.callback(lock.release)
        undo.callback(store.remove, name)
        return lock
    taken = SandboxLock.acquire(store.places(name).lock)
    if taken is None:
        refuse_if_held(observe(store, plan.previous, MountTable.read()))
        raise SandboxBusy(f"sandbox '{name}' is held by another process")
    undo.callback(taken.release)
    if plan.record != plan.previous:
        # Otherwise not written: a sandbox on a full disk must be mountable, to delete something in it.
        undo.callback(_restore, store, plan.previous)
        store.save(plan.record)
    return taken


def _restore(store: Store, record: SandboxRecord) -> None:
    # The disk may be what failed; the record then keeps where the sandbox would have been mounted.
    with suppress(OSError):
        store.save(record)


def _detach_remains(mountpoint: Path) -> None:
    """Take away what a daemon that was killed while starting may have mounted."""
    mount = MountTable.read().at(mountpoint)
    if mount is not None and mount.ours:
        detach_dead(mount)


def _stay(store: Store, plan: MountPlan, lock: SandboxLock, *, as_json: bool) -> None:
    announcement = _announcement(plan, os.getpid(), as_json=as_json)
    arguments = ["--foreground", "--announce", announcement, *(["--json"] if as_json else [])]
    if plan.previous is None:
        arguments.append("--created")
    become(store.locations, plan.record.name, lock, arguments)


def _announcement(plan: MountPlan, pid: int, *, as_json: bool) -> str:
    record: SandboxRecord = plan.record
    if not as_json:
        return str(record.mountpoint)
    described = {
        "name": record.name,
        "workspace": str(record.workspace),
        "mountpoint": str(record.mountpoint),
        "mode": record.mode,
        "pid": pid,
        "resumed": plan.previous is not None,
        "warnings": list(plan.warnings),
    }
    return json.dumps(described, indent=2)
