"""`sandboxfs status`: one sandbox in full."""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.describe import created, full_description
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import Sandbox, observe, select
from sandboxfs.errors import NoSuchSandbox
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store
from sandboxfs.state.tree import measure_tree

DESCRIPTION = """\
Show one sandbox: its workspace, its state, who serves it, and how much it holds.
Never waits for a mount, be its daemon dead or hung."""

EXAMPLES = ["sandboxfs status", "sandboxfs status -s app --json"]


class Arguments(argparse.Namespace):
    sandbox: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("status", DESCRIPTION, EXAMPLES, [NoSuchSandbox])
    add_sandbox_option(made)
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    sandbox = observe(store, select(store, arguments.sandbox), MountTable.read())
    upper = measure_tree(store.places(sandbox.name).upper)
    if arguments.json:
        output.document(full_description(sandbox, upper))
        return 0
    at_least = "" if upper.complete else "at least "
    lines = {
        "sandbox": sandbox.name,
        "state": _state(sandbox),
        "workspace": output.shown(sandbox.record.workspace),
        "mountpoint": output.shown(sandbox.record.mountpoint),
        "mode": sandbox.record.mode,
        "created": created(sandbox),
        "upper": f"{at_least}{output.human_size(upper.size)} in {upper.entries} entries",
    }
    for word, value in lines.items():
        output.data(f"{word + ':':12}{value}")
    if sandbox.state == "dead":
        output.note("hint: the daemon died; mount the sandbox again to recover it, or unmount it")
    return 0


def _state(sandbox: Sandbox) -> str:
    if not sandbox.held or sandbox.uptime is None:
        return sandbox.state
    served = f"pid {sandbox.pid}, for {output.human_duration(sandbox.uptime)}"
    held = "" if sandbox.state == "mounted" else ", still held"
    return f"{sandbox.state}{held} ({served})"
