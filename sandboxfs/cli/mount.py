"""`sandboxfs mount`: serve a view of a workspace.

The plan is checked first; then everything is made in an order in which each step can be taken back, so that
a command that fails leaves nothing behind (`preparing`).
"""

import json
import os
from contextlib import ExitStack

from sandboxfs.cli import output
from sandboxfs.cli.options import PolicyArguments, add_policy_options, policy_request
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.planning import MountPlan, MountRequest, plan_mount
from sandboxfs.cli.preparing import prepare
from sandboxfs.control.launch import become, launch
from sandboxfs.errors import DaemonLost, MountFailed, SandboxBusy
from sandboxfs.paths import quoted
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


class Arguments(PolicyArguments):
    workspace: str | None
    mountpoint: str | None
    foreground: bool
    name: str | None
    allow_other: bool
    read_only: bool
    mkdir: bool
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
    add_policy_options(made, allow="allow one path in the workspace; default: rw; asked after all --rule")
    return made


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
        policy=policy_request(arguments),
    )
    plan = plan_mount(store, request, os.environ)
    if not arguments.json:
        output.warnings(plan.warnings)
    with ExitStack() as undo:
        lock = prepare(store, plan, undo)
        if arguments.foreground:
            _stay(store, plan, lock, as_json=arguments.json)
        pid = launch(store.locations, plan.record.name, lock).pid
        undo.pop_all()
        lock.hand_over()
    if not arguments.json:
        verb = "made" if plan.previous is None else "resumed"
        output.note(f"{verb} sandbox '{plan.record.name}' of {quoted(plan.record.workspace)}")
    output.data(_announcement(plan, pid, as_json=arguments.json))
    return 0


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
