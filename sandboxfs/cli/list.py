"""`sandboxfs list` and `status`: all sandboxes, one line each, the last used first; and one in full."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context, visible
from sandboxfs.errors import NoSuchSandbox
from sandboxfs.paths import counted, quoted
from sandboxfs.policy.model import SourceKind
from sandboxfs.service.listing import (
    Counts,
    MeasuredSandbox,
    SandboxDescription,
    describe_sandbox,
    home_of,
    list_sandboxes,
)
from sandboxfs.service.policy import LivePolicy, ShownRule
from sandboxfs.service.responder import ResponderState

DESCRIPTION = """\
Show all sandboxes, the last used first, with their companions under them: whether they
are mounted, unmounted or dead (the daemon died and left its mount behind), how many
changes they hold and how many of these are in conflict with the workspace, what they take
on disk, how old they are and when they were last used. Never waits for a mount."""

EXAMPLES = ["sandboxfs list", "sandboxfs list --json"]

STATUS_DESCRIPTION = """\
Show one sandbox: its workspace, its state, who serves it, how much it holds and has
changed, the policy in force with how often each rule decided, and what was counted in
this session. Never waits for a mount; a daemon that is hung is asked for two seconds at
most."""

STATUS_EXAMPLES = ["sandboxfs status", "sandboxfs status -s app --json"]

HEADER = ("NAME", "STATE", "CHANGES", "CONFLICTS", "SIZE", "AGE", "USED", "WORKSPACE", "MOUNTPOINT")
# A name and a workspace are shortened to no less than this.
_SHORTEST = 12
# What is done, in this order, until the table fits: a column is left out, and some are shortened.
_STEPS = (
    ("MOUNTPOINT", ("WORKSPACE",)),
    ("AGE", ("WORKSPACE",)),
    ("SIZE", ("WORKSPACE",)),
    ("CONFLICTS", ("WORKSPACE",)),
    ("", ("WORKSPACE", "NAME")),
    ("USED", ("WORKSPACE", "NAME")),
    ("WORKSPACE", ("NAME",)),
)


class Arguments(argparse.Namespace):
    sandbox: str | None
    json: bool


def parser(verb: str = "list") -> Parser:
    if verb == "list":
        return verb_parser(verb, DESCRIPTION, EXAMPLES, [])
    made = verb_parser(verb, STATUS_DESCRIPTION, STATUS_EXAMPLES, [NoSuchSandbox])
    add_sandbox_option(made)
    return made


def run(words: list[str], verb: str = "list") -> int:
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    return _list(arguments) if verb == "list" else _show_status(arguments)


def _list(arguments: Arguments) -> int:
    here = caller_context(as_json=arguments.json)
    found = list_sandboxes(here)
    for name, reason in found.unreadable:
        output.note(f"sandboxfs: cannot read sandbox '{name}': {reason}")
    if arguments.json:
        output.document({"sandboxes": [one.as_json() for one in found.sandboxes]})
    elif not found.sandboxes:
        output.note("no sandboxes")
    else:
        now, home = time.time(), home_of(here)
        width = output.terminal_width() if sys.stdout.isatty() else None
        header, rows = fitted(HEADER, [_row(one, now, home) for one in found.sandboxes], width)
        output.table(header, rows)
    return 0


def _row(one: MeasuredSandbox, now: float, home: Path) -> list[str]:
    record, counts = one.record, one.counts
    indent = "" if record.companion_of is None else "  "
    at_least = "" if one.size.complete else ">"
    return [
        indent + record.name,
        one.status.state,
        _uncounted(one) if counts is None else _changes(counts),
        "?" if counts is None else str(counts.conflicts or "-"),
        at_least + output.human_size(one.size.size).replace(" ", ""),
        _ago(now - record.created.timestamp()),
        "now" if one.status.held else _ago(now - one.used.timestamp()),
        _short(record.workspace, home),
        _short(record.mountpoint, home) if one.status.state != "unmounted" else "-",
    ]


def _uncounted(one: MeasuredSandbox) -> str:
    return "in a view" if one.uncounted == "view" else one.uncounted or "?"


def _changes(counts: Counts) -> str:
    if counts.held:
        return f"{counts.changes:,}+{counts.held:,} held"
    left_out = counts.ignored + counts.git
    if counts.changes or not left_out:
        return f"{counts.changes:,}" if counts.changes else "-"
    return f"{left_out:,} left out"


def _ago(seconds: float) -> str:
    """Write a length of time for a person, by its largest unit."""
    return output.human_duration(max(0.0, seconds)).split()[0]


def _short(path: Path, home: Path) -> str:
    """Show *path* with `~` for the home."""
    if home != Path("/") and path.is_relative_to(home):
        return output.shown(Path("~", path.relative_to(home)))
    return output.shown(path)


def fitted(
    header: tuple[str, ...], rows: list[list[str]], width: int | None
) -> tuple[tuple[str, ...], list[list[str]]]:
    """Make a table fit in *width* characters: without columns that can be missed, others shortened."""
    if width is None:
        return header, rows
    columns = {cells[0]: list(cells[1:]) for cells in zip(header, *rows, strict=True)}
    for left_out, shortened in _STEPS:
        excess = _width(columns) - width
        if excess <= 0:
            break
        if left_out == "CONFLICTS" and any(cell != "-" for cell in columns[left_out]):
            continue
        columns.pop(left_out, None)
        excess = _width(columns) - width
        if excess <= sum(max(0, _widest(columns, word) - _SHORTEST) for word in shortened):
            for word in shortened:
                room = max(_SHORTEST, _widest(columns, word) - max(0, _width(columns) - width))
                columns[word] = [_ending(cell, room) for cell in columns[word]]
            break
    return tuple(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _widest(columns: Mapping[str, list[str]], word: str) -> int:
    return max(map(len, (word, *columns[word])))


def _width(columns: Mapping[str, list[str]]) -> int:
    return sum(_widest(columns, word) + 2 for word in columns) - 2


def _ending(text: str, room: int) -> str:
    """Return *text* with its beginning left out where it is longer than *room*; an indent stays."""
    if len(text) <= room:
        return text
    indent = " " * (len(text) - len(text.lstrip(" ")))
    return f"{indent}…{text[len(text) - room + len(indent) + 1 :]}"


# One in full


def _show_status(arguments: Arguments) -> int:
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
        "changes": _counted_changes(found.counts),
    }
    if found.unfinished is not None:
        lines["unfinished"] = found.unfinished.sentence
    if found.responder is not None:
        lines["asked"] = _asked(found.responder)
    if found.live.counters:
        lines["session"] = ", ".join(f"{word} {count}" for word, count in found.live.counters.items())
    return lines


def _asked(responder: ResponderState) -> str:
    """Say what is asked beside persons, and whether anybody asks it."""
    asked = responder.asked
    words = [shlex.join(asked.command)] if asked.command else []
    shown = " and ".join(visible(os.fsencode(one)) for one in [*words, *([asked.url] if asked.url else [])])
    log = output.shown(responder.log)
    ended = f"; the responder has ended: see {log}" if responder.pid is None else ""
    last = responder.trouble
    trouble = "" if last is None else f"; last trouble: {visible(os.fsencode(last))}"
    return f"{shown}{ended}{trouble}"


def _counted_changes(counts: Counts | None) -> str:
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
    execute = [] if rule.execute is None else [f"execute {rule.execute}"]
    ignored = ["ignored"] if rule.ignored else []
    return ", ".join([rule.mode, *ignored, *([f"hold {'+'.join(rule.hold)}"] if rule.hold else []), *execute])


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
