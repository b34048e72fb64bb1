"""`sandboxfs status`: one sandbox in full.

What only its daemon knows is asked of it, for a short while; a daemon that does not answer costs no more.
"""

import argparse

from sandboxfs.changes.scan import scan
from sandboxfs.changes.summary import without_implied
from sandboxfs.cli import output
from sandboxfs.cli.describe import Changes, created, effective_mode, full_description
from sandboxfs.cli.live import InForce, Live, look, selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.record_list import unfinished
from sandboxfs.cli.reviewing import reviewed
from sandboxfs.cli.rules import show_rules
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.policy.model import Kind
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store
from sandboxfs.state.tree import measure_tree

DESCRIPTION = """\
Show one sandbox: its workspace, its state, who serves it, how much it holds and has
changed, the policy in force with how often each rule decided, and what was counted in
this session. Never waits for a mount; a daemon that is hung is asked for two seconds at
most."""

PATIENCE = 2.0

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
    store, sandbox = selected(arguments.sandbox)
    live = look(store, sandbox, PATIENCE)
    upper = measure_tree(store.places(sandbox.name).upper)
    changes = _count_changes(store, sandbox.record)
    begun = unfinished(store.places(sandbox.name))
    if arguments.json:
        described = full_description(sandbox, upper, live, changes)
        output.document(described | {"unfinished": None if begun is None else begun.as_json()})
        return 0
    at_least = "" if upper.complete else "at least "
    lines = {
        "sandbox": sandbox.name,
        "state": _state(sandbox),
        "workspace": output.shown(sandbox.record.workspace),
        "mountpoint": output.shown(sandbox.record.mountpoint),
        "mode": _mode(sandbox, live.policy),
        "created": created(sandbox),
        "upper": f"{at_least}{output.human_size(upper.size)} in {upper.entries} entries",
        "changes": _changes(changes),
    }
    if begun is not None:
        lines["unfinished"] = begun.sentence
    if live.counters:
        lines["session"] = ", ".join(f"{word} {count}" for word, count in live.counters.items())
    for word, value in lines.items():
        output.data(f"{word + ':':12}{value}")
    _show_policy(live)
    if sandbox.state == "dead":
        output.note("hint: the daemon died; mount the sandbox again to recover it, or unmount it")
    if live.problem is not None:
        output.note(f"note: {live.problem}; the rules are those of the last mount")
    return 0


def _count_changes(store: Store, record: SandboxRecord) -> Changes | None:
    """Count the changes as `diff` shows them; None when the workspace or the sandbox cannot be read."""
    try:
        with reviewed(store, record) as layers:
            found = without_implied(scan(layers))
    except UsageError:
        return None
    return Changes(len(found), sum(finding.conflict is not None for finding in found))


def _changes(changes: Changes | None) -> str:
    if changes is None:
        return "not known: the workspace cannot be read"
    if not changes.conflicts:
        return f"{changes.count:,}"
    return f"{changes.count:,}, {changes.conflicts:,} in conflict with the workspace"


def _mode(sandbox: Sandbox, policy: InForce) -> str:
    mode = effective_mode(sandbox, policy)
    if sandbox.record.read_only:
        return f"{mode} (mounted with --read-only)"
    return mode if policy.enabled else f"{mode} (rules are off)"


def _show_policy(live: Live) -> None:
    """Write the rules, without built-in ones that decided nothing."""
    quiet = [rule for rule in live.policy.rules if rule.kind == Kind.BUILT_IN.value and not rule.hits]
    output.data("")
    show_rules([rule for rule in live.policy.rules if rule not in quiet])
    if quiet:
        output.data(f"and {len(quiet)} built-in rules that decided nothing; 'sandboxfs rules' shows them")


def _state(sandbox: Sandbox) -> str:
    if not sandbox.held or sandbox.uptime is None:
        return sandbox.state
    served = f"pid {sandbox.pid}, for {output.human_duration(sandbox.uptime)}"
    held = "" if sandbox.state == "mounted" else ", still held"
    return f"{sandbox.state}{held} ({served})"
