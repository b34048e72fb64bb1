"""`sandboxfs log`: the audit log of a sandbox: its decisions and events, and its verification."""

import argparse
import json
from datetime import datetime
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import TerminalEvents, caller_context
from sandboxfs.codec import lossless
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.paths import counted, invisible_in
from sandboxfs.service.read_log import LogEnding, LogQuery, LogRecord, VerifiedLog, read_log, verify_log

DESCRIPTION = """\
Show the audit log of a sandbox: one line for each decision and each event, oldest
first. With --verify, prove instead that no record was changed, removed or moved, and
exit with 1, naming the first broken one, where that is not so."""

EXAMPLES = [
    "sandboxfs log --denied --since 10m",
    "sandboxfs log -s app --path 'src/**' --op unlink --json",
    "sandboxfs log --follow",
    "sandboxfs log --verify",
]

EXIT_BROKEN = 1


class Arguments(argparse.Namespace):
    sandbox: str | None
    denied: bool
    asks: bool
    path: str | None
    since: str | None
    op: str | None
    pid: int | None
    follow: bool
    verify: bool
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "log", DESCRIPTION, EXAMPLES, [NoSuchSandbox], {EXIT_BROKEN: "--verify found the log broken"}
    )
    add_sandbox_option(made)
    made.add_argument("--denied", action="store_true", help="only what was refused")
    made.add_argument(
        "--asks", action="store_true", help="only questions to a person, answers, and what was granted"
    )
    made.add_argument("--path", metavar="PATTERN", help="only what concerns these paths, or paths below them")
    made.add_argument("--since", metavar="TIME", help="only what is not older: 30s, 10m, 2h, 7d, or a time")
    made.add_argument("--op", metavar="NAME", help="only this operation, such as open, unlink or rename")
    made.add_argument("--pid", metavar="N", type=int, help="only what this process asked for")
    made.add_argument("--follow", action="store_true", help="go on until the sandbox is unmounted")
    made.add_argument("--verify", action="store_true", help="prove that the log is whole")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    query = LogQuery(
        arguments.denied, arguments.path, arguments.since, arguments.op, arguments.pid, arguments.asks
    )
    here, events = caller_context(as_json=arguments.json), TerminalEvents()
    if arguments.verify:
        query.checked()
        if arguments.follow or query != LogQuery():
            raise UsageError("--verify looks at the whole log and takes no other option but --json")
        return _tell_verdict(verify_log(arguments.sandbox, here, events), as_json=arguments.json)

    def show(record: LogRecord) -> None:
        output.data(_line(record) if arguments.json else human(record.fields))

    ending = read_log(query, arguments.sandbox, here, events, show, follow=arguments.follow)
    _tell_ending(ending)
    if arguments.follow and not ending.unmounted:
        output.note("note: nobody serves the sandbox; there is nothing to follow")
    return 0


def _tell_ending(ending: LogEnding) -> None:
    if ending.damaged:
        output.note(f"note: {ending.damaged} damaged lines are left out; see 'sandboxfs log --verify'")
    if ending.gaps:
        output.note(f"note: the log has {ending.gaps} gaps: what is asked for may have happened in them")


def human(record: dict[str, object]) -> str:
    """Write *record* on one line for a person."""
    if "event" in record:
        known = ("time", "seq", "event", "prev", "crc")
        # What a record says is not there, a person need not read.
        said = {key: value for key, value in record.items() if key not in known and value is not None}
        details = [f"{key}: {_plain(value)}" for key, value in said.items()]
        return "  ".join([_time(record), f"-- {_plain(record['event'])}", *details])
    paths = [_path(record[key]) for key in ("path", "to") if key in record]
    verdict = "denied" if record.get("allowed") is False else "ok"
    words = [
        _time(record),
        f"{verdict:6}",
        f"{_plain(record.get('op')):9}",
        " -> ".join(paths),
        f"{_plain(record.get('decision'))} by {_rule(record)}",
    ]
    if record.get("errno") is not None:
        words.append(_plain(record["errno"]))
    words.append(f"{_plain(record.get('command') or '?')}[{_plain(record.get('pid'))}]")
    return "  ".join(words)


def _time(record: dict[str, object]) -> str:
    """Write the time of *record* where the person is, to the millisecond: much happens in a second."""
    try:
        when = datetime.fromisoformat(str(record["time"])).astimezone()
        return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03}"
    except (ValueError, OverflowError, OSError):
        return _plain(record["time"])


def _line(record: LogRecord) -> str:
    """Write a record as it is, but for names that are not UTF-8."""
    if b"\\ud" not in record.line:
        return record.line.decode(errors="replace")
    return json.dumps(lossless(record.fields), separators=(",", ":"))


def _rule(record: dict[str, object]) -> str:
    if record.get("rule") is None:
        return "no rule"
    return f"'{_plain(record['rule'])}' ({_plain(record.get('source'))})"


def _path(value: object) -> str:
    return output.shown(Path(value)) if isinstance(value, str) else _plain(value)


def _plain(value: object) -> str:
    """Write *value* on one line, whatever a damaged or hostile record has there."""
    text = str(value)
    hidden = invisible_in(text)
    return "".join(
        one if one.isprintable() and place not in hidden else ascii(one)[1:-1]
        for place, one in enumerate(text)
    )


def _tell_verdict(found: VerifiedLog, *, as_json: bool) -> int:
    verdict = found.verdict
    if as_json:
        output.document(found.as_json())
    elif verdict.broken is not None:
        output.data(f"broken at {verdict.broken}")
    elif verdict.records:
        older = "" if verdict.first == 1 else "; older ones were rotated away"
        records = counted(verdict.records, "record")
        output.data(f"whole: {records}, seq {verdict.first} to {verdict.last}{older}")
        output.data(f"head: {verdict.head}")
    else:
        output.data("whole: nothing is logged yet")
    if verdict.headless and verdict.broken is None:
        output.note("note: there is no 'audit.head': what is missing at either end cannot be told")
    return 0 if verdict.broken is None else EXIT_BROKEN
