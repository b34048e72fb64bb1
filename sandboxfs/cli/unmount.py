"""`sandboxfs unmount`: end the serving of a sandbox; its changes stay.

Returns when the daemon has gone, so that the sandbox can be mounted again or removed at once.
"""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import DaemonLost, MountFailed, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.paths import quoted
from sandboxfs.service.mount import Unmounted, unmount
from sandboxfs.service.select import select_observed

DESCRIPTION = """\
End the serving of a sandbox and return when its daemon has gone. The changes stay in
the sandbox; mounting it again shows them again. A mount whose daemon died is detached.
Unmounting what is not mounted is no error."""

EXAMPLES = ["sandboxfs unmount /mnt/app", "sandboxfs unmount -s app", "sandboxfs unmount --wait /mnt/app"]


class Arguments(argparse.Namespace):
    mountpoint: str | None
    sandbox: str | None
    lazy: bool
    wait: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "unmount", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy, MountFailed, DaemonLost]
    )
    made.add_argument("mountpoint", nargs="?", metavar="MOUNTPOINT", help="where the view is")
    add_sandbox_option(made)
    how = made.add_mutually_exclusive_group()
    how.add_argument("--lazy", action="store_true", help="detach at once; who uses it keeps what is open")
    how.add_argument("--wait", action="store_true", help="when it is in use, wait until it is not")
    return made


_SENTENCES = {
    "already": "already unmounted: {}",
    "detached": "detached a dead mount: {}",
    "ended": "unmounted {}",
}


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.mountpoint is not None and arguments.sandbox is not None:
        raise UsageError("name either a mountpoint or a sandbox, not both")
    _tell(arguments, _done(arguments))
    return 0


def _done(arguments: Arguments) -> Unmounted:
    here = caller_context(as_json=arguments.json)
    if arguments.mountpoint is not None:
        return unmount(arguments.mountpoint, here.environment, lazy=arguments.lazy, wait=arguments.wait)
    _, sandbox = select_observed(arguments.sandbox, here, TerminalEvents(), changing=True, served=True)
    return unmount(sandbox.record, here.environment, lazy=arguments.lazy, wait=arguments.wait)


def _tell(arguments: Arguments, done: Unmounted) -> None:
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
