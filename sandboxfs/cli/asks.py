"""The verbs about questions: `asks` shows them or has a person asked, `answer` answers one; and grants.

A question is asked where a rule says that a person decides about reading or executing. What an answer leaves
is a grant, listed by `grants` and taken back by `revoke`.
"""

import argparse
import os
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.question_prompt import QuestionPrompt, process
from sandboxfs.cli.terminal import Terminal, TerminalEvents, caller_context, visible
from sandboxfs.errors import DaemonLost, NoSuchSandbox, SandboxBusy, UsageError
from sandboxfs.service.grant_tables import tables_to_keep
from sandboxfs.service.questions import (
    AnswerTerms,
    QuestionEvent,
    ShownGrant,
    WaitingQuestion,
    WaitingQuestions,
    answer_question,
    event_line,
    follow,
    follow_questions,
    revoke_grants,
    standing_grants,
    waiting_questions,
)

DESCRIPTIONS = {
    "asks": """\
Show the questions that wait: programs that open what a rule asks about, and wait until a
person answers. With --follow, be that person, in a terminal of your own: each question is
shown with its rule, its program and the head of the file, and answered with a letter. With
--follow and --json a program is that person: one object a line, answered with 'sandboxfs
answer'. Without anybody who follows, opening is refused at once.""",
    "answer": """\
Answer the question ID of the running session. The first answer counts. One for once, the
default, is for what waits for the shown path; any other stays as a grant. With '--during
always' it is also written to the end of your configuration, as a [[grant]] of this workspace,
and holds in later sessions as long as the same rule asks.""",
    "grants": """\
Show what was allowed or refused by answers, and still is in the running session: for which
paths, for whom, for how long, and how often it decided. With --toml, print the [[grant]]
tables that keep them in your configuration; what ends with its session is a comment.""",
    "revoke": """\
Take back what an answer allowed or refused, in the running session and at once: files that
are open because of it can be read no more, and memory maps of them end their program. What
was kept in your configuration is removed there.""",
}

EXAMPLES = {
    "asks": ["sandboxfs asks", "sandboxfs asks --follow", "sandboxfs asks -s app --follow --json"],
    "answer": [
        "sandboxfs answer 3 allow",
        "sandboxfs answer 3 allow --for directory --during 30m",
        "sandboxfs answer 3 allow --for './config/*.env' --tree",
        "sandboxfs answer 3 allow --for path --during always",
        "sandboxfs answer 3 deny --for path --reason 'use config.example'",
    ],
    "grants": ["sandboxfs grants", "sandboxfs grants -s app --json", "sandboxfs grants --toml"],
    "revoke": ["sandboxfs revoke 4", "sandboxfs revoke --all"],
}

# Of the program that asks and its parents, in a list.
_SHOWN_PARENTS = 3


class Arguments(argparse.Namespace):
    sandbox: str | None
    json: bool
    follow: bool
    number: int | None
    decision: str
    extent: str
    during: str
    program: bool
    tree: bool
    reason: str | None
    toml: bool
    all: bool


def parser(verb: str) -> Parser:
    made = verb_parser(verb, DESCRIPTIONS[verb], EXAMPLES[verb], [NoSuchSandbox, SandboxBusy, DaemonLost])
    add_sandbox_option(made)
    match verb:
        case "asks":
            made.add_argument(
                "--follow", action="store_true", help="be asked, until the sandbox is unmounted"
            )
        case "answer":
            _add_answer(made)
        case "grants":
            made.add_argument("--toml", action="store_true", help="print tables for the configuration")
        case _:
            made.add_argument(
                "number", nargs="?", type=int, metavar="ID", help="a grant: its number in 'sandboxfs grants'"
            )
            made.add_argument("--all", action="store_true", help="all grants of the session")
    return made


def _add_answer(made: Parser) -> None:
    made.add_argument("number", type=int, metavar="ID", help="a question, by its number in 'sandboxfs asks'")
    made.add_argument("decision", choices=("allow", "deny"), metavar="allow|deny", help="the answer")
    made.add_argument(
        "--for",
        dest="extent",
        default="once",
        metavar="WHAT",
        help="once, path, directory, content (of a new program), or a pattern, as in rules, that matches "
        "the shown path; default: once",
    )
    made.add_argument(
        "--during",
        default="session",
        metavar="TIME",
        help="session, a time as 90s, 30m, 2h, or always: written to your configuration, for this "
        "workspace; default: session",
    )
    whom = made.add_mutually_exclusive_group()
    whom.add_argument("--program", action="store_true", help="only for the program that asks: its executable")
    whom.add_argument(
        "--tree", action="store_true", help="only for the process that asks, and those it starts"
    )
    made.add_argument("--reason", metavar="TEXT", help="one line that the program can read")


def run(words: list[str], verb: str) -> int:
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    match verb:
        case "asks":
            return _follow(arguments) if arguments.follow else _list(arguments)
        case "answer":
            return _answer(arguments)
        case "grants":
            return _grants(arguments)
        case _:
            return _revoke(arguments)


def _list(arguments: Arguments) -> int:
    found = waiting_questions(arguments.sandbox, caller_context(as_json=arguments.json), TerminalEvents())
    if arguments.json:
        output.document(found.as_json())
        return 0
    if found.questions:
        header = ("ID", "ASKS TO", "PATH", "PROGRAM", "RULE", "SINCE", "LEFT")
        output.table(header, [_question_row(question) for question in found.questions])
    else:
        output.note(f"nothing is asked: sandbox {output.named(found.record)}")
    _tell_if_alone(found)
    return 0


def _tell_if_alone(found: WaitingQuestions) -> None:
    if not found.followers:
        output.note(
            "note: nobody follows the questions: what a rule asks about is refused at once; "
            "'sandboxfs asks --follow' makes you somebody who is asked"
        )


def _question_row(question: WaitingQuestion) -> tuple[str, ...]:
    path = _shown(question.path) + (f" and {question.more} more" if question.more else "")
    line = [_plain(process(one)) for one in (question.program, *question.program.parents)]
    # The prompt and JSON have all of it, up to whoever started the shell.
    shown = line[:_SHOWN_PARENTS] + (["…"] if len(line) > _SHOWN_PARENTS else [])
    return (
        str(question.id),
        question.deed,
        path,
        " < ".join(shown),
        _plain(str(question.rule)),
        output.local_time(question.since),
        "is read" if question.remaining is None else output.human_duration(question.remaining),
    )


def _follow(arguments: Arguments) -> int:
    caller, events = caller_context(as_json=arguments.json), TerminalEvents()
    if arguments.json:
        follow_questions(_stream, arguments.sandbox, caller, events, reader=1)
        return 0
    hint = "a program follows with 'sandboxfs asks --follow --json'"
    with (
        Terminal.open("ask about what programs open", hint) as terminal,
        follow(arguments.sandbox, caller, events) as followed,
    ):
        QuestionPrompt(terminal, followed).run()
    return 0


def _stream(event: QuestionEvent) -> None:
    output.data(event_line(event))


def _answer(arguments: Arguments) -> int:
    if arguments.number is None:
        raise UsageError("name a question", hint="'sandboxfs asks' lists them")
    terms = AnswerTerms(
        arguments.extent, arguments.during, arguments.program, arguments.tree, arguments.reason
    )
    caller = caller_context(as_json=arguments.json)
    found = answer_question(
        arguments.number, arguments.decision, terms, arguments.sandbox, caller, TerminalEvents()
    )
    if arguments.json:
        output.document(found.as_json())
        return 0
    word = "allowed" if found.decision == "allow" else "denied"
    stays = found.grant is not None and found.grant.extent != "once"
    what = f"{found.question.deed} {_shown(found.question.path)}"
    until = f"; 'sandboxfs revoke {found.grant.id}' takes it back" if found.grant and stays else ""
    if found.grant is not None and found.grant.kept is not None:
        until = f", always: written to {_plain(str(found.grant.kept))}{until}"
    output.note(f"{word}: {what}{until}: sandbox {output.named(found.record)}")
    return 0


def _grants(arguments: Arguments) -> int:
    if arguments.json and arguments.toml:
        raise UsageError("--json and --toml exclude each other")
    found = standing_grants(arguments.sandbox, caller_context(as_json=arguments.json), TerminalEvents())
    if arguments.json:
        whose = {"name": found.record.name, "workspace": str(found.record.workspace)}
        output.document(whose | {"grants": [grant.as_json() for grant in found.grants]})
    elif arguments.toml:
        text = tables_to_keep(found)
        if text:
            output.data(text.removesuffix("\n"))
    elif found.grants:
        header = ("ID", "ANSWER", "FOR", "PATH", "WHO", "LEFT", "HITS", "OPEN", "RULE")
        output.table(header, [_grant_row(grant) for grant in found.grants])
    else:
        output.note(f"nothing was granted: sandbox {output.named(found.record)}")
    return 0


def _grant_row(grant: ShownGrant) -> tuple[str, ...]:
    who = grant.who
    if grant.exe is not None:
        who = f"program {_shown(grant.exe)}"
    elif grant.pid is not None:
        who = f"process {grant.pid} and its children"
    return (
        str(grant.id),
        f"{grant.decision} {grant.access}",
        grant.extent,
        _shown(grant.path or "."),
        who,
        _how_long(grant),
        str(grant.hits),
        str(grant.open),
        _plain(str(grant.rule)),
    )


def _how_long(grant: ShownGrant) -> str:
    if grant.kept is not None:
        return f"always, {_plain(str(grant.kept))}"
    return "session" if grant.remaining is None else output.human_duration(grant.remaining)


def _revoke(arguments: Arguments) -> int:
    if (arguments.number is None) is not arguments.all:
        raise UsageError("name a grant, or --all", hint="'sandboxfs grants' lists them")
    caller = caller_context(as_json=arguments.json)
    found = revoke_grants(arguments.number, arguments.sandbox, caller, TerminalEvents())
    if arguments.json:
        whose = {"name": found.record.name, "workspace": str(found.record.workspace)}
        output.document(whose | {"revoked": [grant.as_json() for grant in found.grants]})
        return 0
    for grant in found.grants:
        what = f"{grant.decision} {grant.access} for {grant.extent} {_shown(grant.path or '.')}"
        written = ""
        if grant.kept is not None:
            out = "removed from" if grant.removed else "was no longer in"
            written = f"; {out} {_shown(grant.kept.file)}"
        output.data(f"taken back: grant {grant.id}, {what}{written}")
    if not found.grants:
        output.note(f"nothing was granted: sandbox {output.named(found.record)}")
    return 0


def _shown(path: str) -> str:
    return output.shown(Path(path))


def _plain(text: str) -> str:
    return visible(os.fsencode(text))
