"""`sandboxfs rules`: the policy in force, rule by rule, with how often each decided."""

import argparse
from collections.abc import Sequence

from sandboxfs.cli import output
from sandboxfs.cli.live import ShownRule, ask_daemon, in_force, require_served, selected
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.errors import DaemonLost, NoSuchSandbox
from sandboxfs.paths import quoted

DESCRIPTION = """\
Show the rules of the running session in the order in which they are asked; the first
that matches decides. With each: where it was written, and how many accesses it decided
so far. The last is the mode of what no rule names. 'sandboxfs config show' shows what
the next mount would have."""

EXAMPLES = ["sandboxfs rules", "sandboxfs rules -s app --json"]


class Arguments(argparse.Namespace):
    sandbox: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("rules", DESCRIPTION, EXAMPLES, [NoSuchSandbox, DaemonLost])
    add_sandbox_option(made)
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store, sandbox = selected(arguments.sandbox)
    require_served(sandbox)
    answer = ask_daemon(store, sandbox, "rules")
    policy = in_force(answer)
    if arguments.json:
        output.document({"name": sandbox.name} | answer)
        return 0
    show_rules(policy.rules)
    if not policy.enabled:
        output.note(f"note: {policy.sentence()}")
    return 0


def show_rules(rules: Sequence[ShownRule]) -> None:
    """Write the table of *rules*."""
    rows = [
        (rule.mode, _pattern(rule.pattern), rule.source, "-" if rule.hits is None else str(rule.hits))
        for rule in rules
    ]
    output.table(("MODE", "PATTERN", "SOURCE", "HITS"), rows)


def _pattern(pattern: str) -> str:
    # A project's patterns are untrusted text: quoting keeps control characters off the terminal.
    safe = quoted(pattern)
    return pattern if safe == f"'{pattern}'" and " " not in pattern else safe
