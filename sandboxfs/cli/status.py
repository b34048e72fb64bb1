"""`sandboxfs status`: one sandbox in full."""

import argparse
from collections.abc import Sequence

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import NoSuchSandbox
from sandboxfs.paths import counted, quoted
from sandboxfs.policy.model import SourceKind
from sandboxfs.service.listing import Counts, SandboxDescription, describe_sandbox
from sandboxfs.service.policy import LivePolicy, ShownRule

DESCRIPTION = """\
Show one sandbox: its workspace, its state, who serves it, how much it holds and has
changed, the policy in force with how often each rule decided, and what was counted in
this session. Never waits for a mount; a daemon that is hung is asked for two seconds at
most."""

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
    here = caller_context(as_json=arguments.json)
    found = describe_sandbox(arguments.sandbox, here, TerminalEvents(), sized=arguments.json)
    if arguments.json:
        output.document(found.as_json())
        return 0
    for word, value in _lines(found).items():
        output.data(f"{word + ':':12}{value}")
    _show_policy(found.live)
    if found.status.state == "dead":
        output.note("hint: the daemon died; mount the sandbox again to recover it, or unmount it")
    if found.live.problem is not None:
        output.note(f"note: {found.live.problem}; the rules are those of the last mount")
    return 0


def _lines(found: SandboxDescription) -> dict[str, str]:
    at_least = "" if found.upper.complete else "at least "
    entries = counted(found.upper.entries, "entry")
    lines = {
        "sandbox": found.name,
        "state": _state(found),
        "workspace": output.shown(found.record.workspace),
        "mountpoint": output.shown(found.record.mountpoint),
        "mode": _mode(found),
        "created": output.local_time(found.record.created),
        "last used": output.local_time(found.used),
        "upper": f"{at_least}{output.human_size(found.upper.size)} in {entries}",
        "changes": _changes(found.counts),
    }
    if found.unfinished is not None:
        lines["unfinished"] = found.unfinished.sentence
    if found.live.counters:
        lines["session"] = ", ".join(f"{word} {count}" for word, count in found.live.counters.items())
    return lines


def _changes(counts: Counts | None) -> str:
    if counts is None:
        return "not known: the workspace cannot be read"
    words = [
        f"{counts.changes:,}",
        *([f"{counts.conflicts:,} in conflict with the workspace"] if counts.conflicts else []),
        *([f"{counts.held:,} held besides"] if counts.held else []),
        *([f"{counts.ignored:,} ignored besides"] if counts.ignored else []),
        *([f"{counts.git:,} in .git besides"] if counts.git else []),
    ]
    return ", ".join(words)


def _mode(found: SandboxDescription) -> str:
    if found.record.read_only:
        return f"{found.mode} (mounted with --read-only)"
    return found.mode if found.live.policy.enabled else f"{found.mode} (rules are off)"


def _show_policy(live: LivePolicy) -> None:
    """Write the rules, without built-in ones that decided nothing."""
    quiet = [rule for rule in live.policy.rules if rule.kind == SourceKind.BUILT_IN.value and not rule.hits]
    output.data("")
    show_rules([rule for rule in live.policy.rules if rule not in quiet])
    if quiet:
        output.data(
            f"and {counted(len(quiet), 'built-in rule')} that decided nothing; "
            f"'sandboxfs rules' shows {'it' if len(quiet) == 1 else 'them'}"
        )


def show_rules(rules: Sequence[ShownRule]) -> None:
    """Write the table of *rules*."""
    rows = [
        (_rule_mode(rule), _pattern(rule.pattern), rule.source, "-" if rule.hits is None else str(rule.hits))
        for rule in rules
    ]
    output.table(("MODE", "PATTERN", "SOURCE", "HITS"), rows)


def _rule_mode(rule: ShownRule) -> str:
    return f"{rule.mode}, hold {'+'.join(rule.hold)}" if rule.hold else rule.mode


def _pattern(pattern: str) -> str:
    # A project's patterns are untrusted text: quoting keeps control characters off the terminal.
    safe = quoted(pattern)
    return pattern if safe == f"'{pattern}'" and " " not in pattern else safe


def _state(found: SandboxDescription) -> str:
    status = found.status
    if not status.held or status.uptime is None:
        return status.state
    served = f"pid {status.pid}, for {output.human_duration(status.uptime)}"
    held = "" if status.state == "mounted" else ", still held"
    return f"{status.state}{held} ({served})"
