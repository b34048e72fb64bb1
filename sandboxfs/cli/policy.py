"""`sandboxfs why`, `rules`, `allow`, `ro`, `rw`, `enable`, `disable`: the policy shown and changed.

`why` explains the policy, `rules` shows it, and the others each ask for one change, which lasts as long as
the session, and say in one line what is in force then.
"""

import argparse
from collections.abc import Iterator

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.errors import DaemonLost, NoSuchSandbox
from sandboxfs.paths import counted, quoted
from sandboxfs.policy.model import Access
from sandboxfs.service.policy import (
    AccessExplanation,
    AllowedDirectory,
    RulesInForce,
    SessionPolicy,
    ShownRule,
    Switch,
    allow_path,
    explain_access,
    rules_in_force,
    still_refused,
    switch_policy,
)
from sandboxfs.service.questions import ShownGrant

DESCRIPTIONS = {
    "why": """\
Explain what the policy says about an access to PATH: the decision, the rule that gave
it and where that is written, the rules that were asked before and did not match, and
the smallest change that would allow it. Where a rule asks: who is connected now, and which
grant would answer. PATH need not exist; one that ends in '/' is a
directory. The policy of a mounted sandbox is the one in force, of another one that of
its last mount.""",
    "allow": """\
Give PATH, and what is below it, another mode in the running session and at once: rw
when none is named. The new rule is asked before all others; a second one for the same
path replaces the first. PATH need not exist. A relative one starts at the current
directory when that is in the workspace, else at the workspace. The next mount starts
from the files again. A directory outside the workspace, ro or rw, appears at its own
path to the programs of a run that goes on under bubblewrap, copy-on-write, as one that
was named with --allow when the run was started.""",
    "ro": """\
Make read-only what no rule names, in the running session and at once: also for files
that are open already. Rules stay in force. The next mount starts from the files again.""",
    "rw": """\
Make writable what no rule names, in the running session and at once. Rules stay in
force, and what is written stays in the sandbox. The next mount starts from the files
again.""",
    "enable": """\
Enforce the rules again, in the running session and at once.""",
    "disable": """\
Enforce no rule any more, in the running session and at once: nothing is refused or
hidden. What is written stays in the sandbox all the same.""",
    "rules": """\
Show the rules of the running session in the order in which they are asked; the first
that matches decides. With each: where it was written, and how many accesses it decided
so far. The last is the mode of what no rule names. 'sandboxfs config show' shows what
the next mount would have.""",
}

EXAMPLES = {
    "why": [
        "sandboxfs why .env",
        "sandboxfs why src/main.py write",
        "sandboxfs why -s app --json build/ delete",
    ],
    "allow": [
        "sandboxfs allow src/generated",
        "sandboxfs allow ~/projects/app/docs ro",
        "sandboxfs allow secrets hide",
        "sandboxfs allow ~/projects/lib:ro",
    ],
    "ro": ["sandboxfs ro", "sandboxfs ro -s app --json"],
    "rw": ["sandboxfs rw", "sandboxfs rw -s app --json"],
    "enable": ["sandboxfs enable", "sandboxfs enable -s app --json"],
    "disable": ["sandboxfs disable", "sandboxfs disable -s app --json"],
    "rules": ["sandboxfs rules", "sandboxfs rules -s app --json"],
}


EXIT_DENIED = 1
# So many rules that did not match are shown to a person.
_SHOWN = 20


class Arguments(argparse.Namespace):
    path: str
    access: str
    mode: str | None
    sandbox: str | None
    json: bool


def parser(verb: str) -> Parser:
    endings = {EXIT_DENIED: "the access is denied, or waits for a person"} if verb == "why" else {}
    made = verb_parser(verb, DESCRIPTIONS[verb], EXAMPLES[verb], [NoSuchSandbox, DaemonLost], endings)
    add_sandbox_option(made)
    if verb == "why":
        made.add_argument("path", metavar="PATH", help="a path in the workspace or in the view")
        made.add_argument(
            "access",
            nargs="?",
            default=Access.READ.value,
            metavar="ACCESS",
            choices=[access.value for access in Access],
            help="read, write, delete or execute; default: read",
        )
    if verb == "allow":
        made.add_argument(
            "path", metavar="PATH", help="a path in the workspace, or a directory elsewhere; not a pattern"
        )
        made.add_argument(
            "mode", nargs="?", metavar="MODE", help="ro, rw, hold, ask, deny, hide; default: rw"
        )
    return made


def run(words: list[str], verb: str) -> int:
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    match verb:
        case "why":
            return _why(arguments)
        case "allow":
            return _allow(arguments)
        case "ro" | "rw" | "enable" | "disable":
            return _switch(arguments, verb)
        case _:
            return _rules(arguments)


def _switch(arguments: Arguments, verb: Switch) -> int:
    found = switch_policy(verb, arguments.sandbox, caller_context(as_json=arguments.json), TerminalEvents())
    if arguments.json:
        output.document(found.as_json())
    else:
        output.data(f"sandbox {output.named(found.record)}: {found.policy.sentence()}")
        _tell_if_read_only(found)
    return 0


def _allow(arguments: Arguments) -> int:
    here = caller_context(as_json=arguments.json)
    found = allow_path(arguments.path, arguments.mode, arguments.sandbox, here, TerminalEvents())
    if arguments.json:
        output.document(found.as_json())
        return 0
    if isinstance(found, AllowedDirectory):
        shown = f"{output.shown(found.path)} is shown as {found.mode.value}, at its own path"
        output.data(f"sandbox {output.named(found.record)}: {shown}")
        output.note(f"note: 'sandboxfs revoke {found.grant}' takes it back")
        return 0
    off = "" if found.policy.enabled else ", once rules are on again"
    output.data(f"sandbox {output.named(found.record)}: {quoted(str(found.rule))} decides first{off}")
    _tell_if_read_only(found)
    refusal = still_refused(found, here)
    if refusal is not None:
        output.note(f"note: still {refusal}")
    return 0


def _tell_if_read_only(found: SessionPolicy) -> None:
    """Tell the person when the kernel refuses every change, whatever the policy says."""
    if found.record.read_only:
        output.note("note: it is mounted with --read-only: nothing can be changed whatever the rules say")


def _rules(arguments: Arguments) -> int:
    # Imported here: the other verbs show no rules.
    from sandboxfs.cli.list import show_rules

    found = rules_in_force(arguments.sandbox, caller_context(as_json=arguments.json), TerminalEvents())
    if arguments.json:
        output.document(found.as_json())
        return 0
    show_rules(found.policy.rules)
    if not found.policy.enabled:
        output.note(f"note: {found.policy.sentence()}")
    for line in _of_persons(found):
        output.note(f"note: {line}")
    return 0


def _of_persons(found: RulesInForce) -> Iterator[str]:
    """Say what rules leave to a person, and who that would be now."""
    policy, asking = found.policy, found.asking
    if asking is not None:
        what = "what a rule asks about"
        if policy.new_programs == "ask":
            what += ", and executing what the sandbox made or changed,"
        if asking.followers:
            yield f"{what} waits for a person: {_connected(asking.followers)}"
        else:
            yield f"{what} is refused at once: {_NOBODY}"
        if asking.questions:
            yield f"{counted(asking.questions, 'question')} waiting: 'sandboxfs asks'"
        if asking.grants:
            yield f"{counted(asking.grants, 'grant')} from answers: 'sandboxfs grants'"
    if policy.holds:
        yield "what a rule holds happens in the sandbox, and commits leave it out until 'sandboxfs approve'"


_NOBODY = "nobody is connected; 'sandboxfs asks --follow' makes you somebody who is asked"


def _connected(followers: int) -> str:
    return "one is connected" if followers == 1 else f"{followers} are connected"


def _why(arguments: Arguments) -> int:
    here = caller_context(as_json=arguments.json)
    access = Access(arguments.access)
    found = explain_access(arguments.path, access, arguments.sandbox, here, TerminalEvents())
    if arguments.json:
        output.document(found.as_json())
    else:
        for line in _lines(found):
            output.data(line)
    return 0 if found.allowed or found.outcome == "happens" else EXIT_DENIED


_HELD = {
    "always": "commit leaves it out until a person approves it",
    "existing": "where the workspace has the file, commit leaves it out until a person approves it",
}


def _lines(found: AccessExplanation) -> Iterator[str]:
    yield found.sentence
    if found.held is not None:
        yield f"  it happens in the sandbox, and {_HELD.get(found.held, _HELD['always'])}"
        yield "  'sandboxfs commit' asks on a terminal; 'approve' and 'commit --approve' let it through"
    if found.asks:
        yield from (f"  {line}" for line in _asking(found))
    if found.new_programs is not None:
        what = "a person is asked, once for each content" if found.new_programs == "ask" else "it is refused"
        yield f"  where the sandbox made or changed it, {what} ([execute] new)"
    if found.came_from is not None:
        shown, origin = quoted(found.path), quoted(found.came_from)
        yield f"  {shown} comes from {origin}, out of a directory that was moved: rules for both places hold"
    if found.decided_above is not None:
        yield f"  the rule matches {quoted(found.decided_above)}, and so all that is in it"
    yield from _passed(found.passed)
    if found.remedies:
        yield "what would allow it:"
    for remedy in found.remedies:
        yield f"  {remedy.where}:"
        yield from (f"    {line}" for line in remedy.text.splitlines())


def _asking(found: AccessExplanation) -> Iterator[str]:
    """Say what would become of the question now, and what to run."""
    asked = found.asked
    if asked is None:
        yield "programs wait while somebody is connected who can be asked, and are refused otherwise"
        return
    for grant in asked.grants:
        word = "allows" if grant.decision == "allow" else "refuses"
        left = "" if grant.remaining is None else f", {output.human_duration(grant.remaining)} left"
        what = f"{grant.extent} {quoted(grant.path or '.')}"
        yield f"grant {grant.id} {word} it: for {what}, {_who(grant)}{left}"
    if any(grant.who == "anybody" for grant in asked.grants):
        return
    others = "other programs" if asked.grants else "a program"
    if asked.followers:
        yield f"{others} would wait now: {_connected(asked.followers)}"
    else:
        yield f"{others} would be refused at once now: {_NOBODY}"
    for question in asked.questions:
        yield f"question {question.id} waits: 'sandboxfs answer {question.id} allow'"


def _who(grant: ShownGrant) -> str:
    if grant.exe is not None:
        return f"for program {quoted(grant.exe)}"
    return "for anybody" if grant.pid is None else f"for process {grant.pid} and its children"


def _passed(rules: list[ShownRule]) -> Iterator[str]:
    if rules:
        yield "asked before, and not matching:"
    yield from (f"  {quoted(str(rule))} ({rule.source})" for rule in rules[:_SHOWN])
    if len(rules) > _SHOWN:
        yield f"  … and {len(rules) - _SHOWN} more"
