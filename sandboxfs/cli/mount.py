"""`sandboxfs mount` and `unmount`: serve a view of a workspace, and end the serving; the changes stay."""

import argparse
import os

from sandboxfs.cli import output
from sandboxfs.cli.parser import (
    Parser,
    PolicyArguments,
    add_policy_options,
    add_sandbox_option,
    policy_request,
    verb_parser,
)
from sandboxfs.codec import document
from sandboxfs.errors import DaemonLost, MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.mount import MountedSandbox, Unmounted, mount, serve, unmount
from sandboxfs.service.mount_plan import MountRequest
from sandboxfs.service.workspace import REPLACED, current_directory

DESCRIPTION = """\
Serve a copy-on-write view of WORKSPACE at MOUNTPOINT and return when it is ready.
Programs see the workspace's files there and may change them; every change is kept in
the sandbox and nothing reaches the workspace. The mountpoint is printed on stdout.

Without WORKSPACE it is $SANDBOXFS_WORKSPACE, else 'root' of the configuration, else a
directory of sandboxfs' own, made when missing. Without MOUNTPOINT one is made in the
runtime directory. Mounting the same workspace at the same place again, or by the same
--name, resumes the sandbox with all its changes.

What programs may do in the view is put together at every mount, from the options here,
the project's .sandboxfs.toml, the configuration and built-in rules; the first rule that
matches decides. The options that a sandbox was made with hold at its later mounts and
runs too. 'sandboxfs why PATH' explains."""

EXAMPLES = [
    "sandboxfs mount ~/projects/app /mnt/app",
    "sandboxfs mount --mkdir --name trial ~/projects/app ./view",
    'cd "$(sandboxfs mount ~/projects/app)"',
    "sandboxfs mount --rule '**/.env*=hide' --rule 'vendor/**=ro' ~/projects/app /mnt/app",
    "sandboxfs mount --mode ro --allow docs ~/projects/app /mnt/app",
]

UNMOUNT_DESCRIPTION = """\
End the serving of a sandbox and return when its daemon has gone. The changes stay in
the sandbox; mounting it again shows them again. A mount whose daemon died is detached.
Unmounting what is not mounted is no error."""

UNMOUNT_EXAMPLES = [
    "sandboxfs unmount /mnt/app",
    "sandboxfs unmount -s app",
    "sandboxfs unmount --wait /mnt/app",
]


class _MountArguments(PolicyArguments):
    workspace: str | None
    mountpoint: str | None
    foreground: bool
    name: str | None
    allow_other: bool
    read_only: bool
    mkdir: bool
    workspace_replaced: bool
    json: bool


class _UnmountArguments(argparse.Namespace):
    mountpoint: str | None
    sandbox: str | None
    lazy: bool
    wait: bool
    json: bool


def parser(verb: str = "mount") -> Parser:
    return _unmount_parser() if verb == "unmount" else _mount_parser()


def _mount_parser() -> Parser:
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
    made.add_argument(
        REPLACED,
        action="store_true",
        help="WORKSPACE is another directory than the sandbox was made for, and that is meant",
    )
    add_policy_options(made, allow="allow one path in the workspace; default: rw; asked after all --rule")
    return made


def _unmount_parser() -> Parser:
    made = verb_parser(
        "unmount",
        UNMOUNT_DESCRIPTION,
        UNMOUNT_EXAMPLES,
        [NoSuchSandbox, SandboxBusy, MountFailed, DaemonLost],
    )
    made.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="where the view is")
    add_sandbox_option(made)
    how = made.add_mutually_exclusive_group()
    how.add_argument("--lazy", action="store_true", help="detach at once; who uses it keeps what is open")
    how.add_argument("--wait", action="store_true", help="when it is in use, wait until it is not")
    return made


def run(words: list[str], verb: str = "mount") -> int:
    return _unmount(words) if verb == "unmount" else _mount(words)


def _mount(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=_MountArguments())
    request = MountRequest(
        workspace=arguments.workspace,
        mountpoint=arguments.mountpoint,
        name=arguments.name,
        read_only=arguments.read_only,
        allow_other=arguments.allow_other,
        mkdir=arguments.mkdir,
        config=arguments.config,
        policy=policy_request(arguments),
        replaced=arguments.workspace_replaced,
        current=current_directory(),
    )

    def warn(sentence: str) -> None:
        if not arguments.json:
            output.warnings([sentence])

    def daemon_arguments(mounted: MountedSandbox) -> list[str]:
        announcement = _announcement(mounted, as_json=arguments.json)
        words = ["--foreground", "--announce", announcement, *(["--json"] if arguments.json else [])]
        return words if mounted.resumed else [*words, "--created"]

    if arguments.foreground:
        serve(request, os.environ, warn, os.getpid(), daemon_arguments)
    mounted = mount(request, os.environ, warn)
    if not arguments.json:
        verb = "resumed" if mounted.resumed else "made"
        output.note(f"{verb} sandbox '{mounted.name}' of {quoted(mounted.workspace)}")
    output.data(_announcement(mounted, as_json=arguments.json))
    return 0


def _announcement(mounted: MountedSandbox, *, as_json: bool) -> str:
    if not as_json:
        return str(mounted.mountpoint)
    described = {
        "name": mounted.name,
        "workspace": str(mounted.workspace),
        "mountpoint": str(mounted.mountpoint),
        "mode": mounted.mode,
        "pid": mounted.pid,
        "resumed": mounted.resumed,
        "warnings": list(mounted.warnings),
    }
    return document(described)


# Unmounting

_SENTENCES = {
    "already": "already unmounted: {}",
    "detached": "detached a dead mount: {}",
    "ended": "unmounted {}",
}


def _unmount(words: list[str]) -> int:
    arguments = parser("unmount").parse_args(words, namespace=_UnmountArguments())
    if arguments.mountpoint is not None and arguments.sandbox is not None:
        raise UsageError("name either a mountpoint or a sandbox, not both")
    _tell(arguments, _done(arguments))
    return 0


def _done(arguments: _UnmountArguments) -> Unmounted:
    # Imported here: whoever mounts does without.
    from sandboxfs.cli.terminal import TerminalEvents, caller_context
    from sandboxfs.service.select import select_observed

    here = caller_context(as_json=arguments.json)
    if arguments.mountpoint is not None:
        return unmount(arguments.mountpoint, here.environment, lazy=arguments.lazy, wait=arguments.wait)
    _, sandbox = select_observed(arguments.sandbox, here, TerminalEvents(), changing=True, served=True)
    return unmount(sandbox.record, here.environment, lazy=arguments.lazy, wait=arguments.wait)


def _tell(arguments: _UnmountArguments, done: Unmounted) -> None:
    record = done.record
    if not arguments.json:
        sentence = _SENTENCES[done.how].format(quoted(done.mountpoint))
        output.note(sentence if record is None else f"{sentence}, sandbox {output.named(record)}")
        return
    output.document(
        {
            "name": None if record is None else record.name,
            "workspace": None if record is None else str(record.workspace),
            "mountpoint": str(done.mountpoint),
            "was": done.was,
            "lazy": arguments.lazy,
        }
    )
