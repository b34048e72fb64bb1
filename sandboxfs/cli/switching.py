"""What do the verbs share that change the running policy?

Each asks the daemon for one change, which lasts as long as the session, and says in one line what is in force
then. Nothing is written anywhere: the next mount starts from the files again.
"""

import argparse
from collections.abc import Mapping, Sequence

from sandboxfs.cli import output
from sandboxfs.cli.live import InForce, ask_daemon, in_force, require_served, selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.errors import DaemonLost, NoSuchSandbox
from sandboxfs.state.store import Store


class Arguments(argparse.Namespace):
    sandbox: str | None
    json: bool


def switch_parser(verb: str, description: str, examples: Sequence[str]) -> Parser:
    """Make the parser of a *verb* that changes the running policy."""
    made = verb_parser(verb, description, examples, [NoSuchSandbox, DaemonLost])
    add_sandbox_option(made)
    return made


def switch(made: Parser, words: list[str], verb: str) -> int:
    """Run a *verb* that takes no argument of its own."""
    arguments = made.parse_args(words, namespace=Arguments())
    store, sandbox = selected(arguments.sandbox)
    answer, policy = change(store, sandbox, verb)
    if arguments.json:
        output.document({"name": sandbox.name} | answer)
    else:
        output.data(f"{sandbox.name}: {policy.sentence()}")
        tell_if_read_only(sandbox)
    return 0


def change(
    store: Store, sandbox: Sandbox, verb: str, args: Mapping[str, object] | None = None
) -> tuple[dict[str, object], InForce]:
    """Ask the daemon of *sandbox* for a change; return its answer, and what is in force now."""
    require_served(sandbox)
    answer = ask_daemon(store, sandbox, verb, args)
    return answer, in_force(answer)


def tell_if_read_only(sandbox: Sandbox) -> None:
    """Tell the person when the kernel refuses every change, whatever the policy says."""
    if sandbox.record.read_only:
        output.note("note: it is mounted with --read-only: nothing can be changed whatever the rules say")
