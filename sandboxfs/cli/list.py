"""`sandboxfs list`: all sandboxes, one line each."""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.describe import short_description
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import observe
from sandboxfs.errors import SandboxError
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

DESCRIPTION = """\
Show all sandboxes: their names, whether they are mounted, unmounted or dead (the
daemon died and left its mount behind), and where. Never waits for a mount."""

EXAMPLES = ["sandboxfs list", "sandboxfs list --json"]


class Arguments(argparse.Namespace):
    json: bool


def parser() -> Parser:
    return verb_parser("list", DESCRIPTION, EXAMPLES, [])


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store = Store(Locations.from_environment())
    table = MountTable.read()
    sandboxes = []
    for name in store.names():
        try:
            sandboxes.append(observe(store, store.load(name), table))
        except SandboxError as error:
            output.note(f"sandboxfs: cannot read sandbox '{name}': {error.message}")
    if arguments.json:
        output.document([short_description(sandbox) for sandbox in sandboxes])
        return 0
    rows = [
        (
            one.name,
            one.state,
            one.record.mode,
            output.shown(one.record.workspace),
            output.shown(one.record.mountpoint),
        )
        for one in sandboxes
    ]
    if rows:
        output.table(("NAME", "STATE", "MODE", "WORKSPACE", "MOUNTPOINT"), rows)
    else:
        output.note("no sandboxes")
    return 0
