"""`sandboxfs allow`: give one path another mode, for this session."""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.following import followed
from sandboxfs.cli.live import ask_daemon, selected, shown_rule
from sandboxfs.cli.parser import Parser
from sandboxfs.cli.places import place_in
from sandboxfs.cli.switching import change, switch_parser, tell_if_read_only
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.paths import quoted
from sandboxfs.policy.model import Access, Mode
from sandboxfs.policy.sources import parse_mode
from sandboxfs.state.store import Store

DESCRIPTION = """\
Give PATH, and what is below it, another mode in the running session and at once: rw
when none is named. The new rule is asked before all others; a second one for the same
path replaces the first. PATH need not exist. A relative one starts at the current
directory when that is in the workspace, else at the workspace. The next mount starts
from the files again."""

EXAMPLES = [
    "sandboxfs allow src/generated",
    "sandboxfs allow ~/projects/app/docs ro",
    "sandboxfs allow secrets hide",
]


class Arguments(argparse.Namespace):
    path: str
    mode: str
    sandbox: str | None
    json: bool


def parser() -> Parser:
    made = switch_parser("allow", DESCRIPTION, EXAMPLES)
    made.add_argument("path", metavar="PATH", help="a path in the workspace; not a pattern")
    made.add_argument(
        "mode", nargs="?", default="rw", metavar="MODE", help="ro, rw, deny or hide; default: rw"
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    mode = parse_mode(arguments.mode, "allow")
    store, sandbox = selected(arguments.sandbox)
    place, _ = followed(store, sandbox.record, place_in(sandbox.record, arguments.path))
    path = str(sandbox.record.workspace / place)
    answer, policy = change(store, sandbox, "allow", {"path": path, "mode": mode.value})
    if arguments.json:
        output.document({"name": sandbox.name} | answer)
        return 0
    off = "" if policy.enabled else ", once rules are on again"
    output.data(f"{sandbox.name}: {quoted(str(shown_rule(answer.get('rule'))))} decides first{off}")
    tell_if_read_only(sandbox)
    if mode in (Mode.RO, Mode.RW):
        _tell_if_out_of_reach(store, sandbox, place or ".", mode)
    return 0


def _tell_if_out_of_reach(store: Store, sandbox: Sandbox, place: str, mode: Mode) -> None:
    """Tell the person when the rule changes nothing: there is no way into a hidden directory."""
    access = Access.READ if mode is Mode.RO else Access.WRITE
    found = ask_daemon(store, sandbox, "why", {"path": place, "access": access.value})
    if found.get("allowed") is False:
        output.note(f"note: still {found.get('sentence')}")
