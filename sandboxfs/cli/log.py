"""`sandboxfs log`: what was asked of a sandbox, and what it was told."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.control.sandboxes import select
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.state.audit_file import AUDIT_NAME
from sandboxfs.state.audit_reader import Line, follow_lines, read_lines
from sandboxfs.state.audit_record import parse_line
from sandboxfs.state.audit_selection import Selection, check_operation, matches, parse_since
from sandboxfs.state.audit_verify import verify
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import holder
from sandboxfs.state.store import Store

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
_LOOKS = 3


class Arguments(argparse.Namespace):
    sandbox: str | None
    denied: bool
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
    made.add_argument("--path", metavar="PATTERN", help="only what concerns these paths, or paths below them")
    made.add_argument("--since", metavar="TIME", help="only what is not older: 30s, 10m, 2h, 7d, or a time")
    made.add_argument("--op", metavar="NAME", help="only this operation, such as open, unlink or rename")
    made.add_argument("--pid", metavar="N", type=int, help="only what this process asked for")
    made.add_argument("--follow", action="store_true", help="go on until the sandbox is unmounted")
    made.add_argument("--verify", action="store_true", help="prove that the log is whole")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    selection = _selection(arguments)
    if arguments.verify and (arguments.follow or selection != Selection()):
        raise UsageError("--verify looks at the whole log and takes no other option but --json")
    store = Store(Locations.from_environment())
    chosen = select(store, arguments.sandbox)
    name, selection = chosen.name, replace(selection, root=str(chosen.workspace))
    places = store.places(name)
    path = places.home / AUDIT_NAME
    served = _Served(places.lock)
    if arguments.verify:
        return _verify(path, name, served, as_json=arguments.json)
    lines = follow_lines(path, served.ended) if arguments.follow else read_lines(path)
    _show(lines, selection, served.saw, as_json=arguments.json)
    if arguments.follow and not served.unmounted:
        output.note("note: nobody serves the sandbox; there is nothing to follow")
    return 0


def _selection(arguments: Arguments) -> Selection:
    since = None if arguments.since is None else parse_since(arguments.since, datetime.now(UTC))
    if arguments.path is not None:
        # A bad one is told before anything is read.
        matches(arguments.path, "")
    if arguments.op is not None:
        check_operation(arguments.op)
    return Selection(arguments.denied, arguments.path, since, arguments.op, arguments.pid)


class _Served:
    """Whether more is to come: not after the sandbox said so, and not when nobody holds it."""

    def __init__(self, lock: Path) -> None:
        self._lock = lock
        self.unmounted = False

    def saw(self, record: dict[str, object]) -> None:
        event = record.get("event")
        if event in ("mounted", "unmounted"):
            self.unmounted = event == "unmounted"

    def ended(self) -> bool:
        return self.unmounted or self.gone

    @property
    def gone(self) -> bool:
        return holder(self._lock) is None


def _show(
    lines: Iterator[Line],
    selection: Selection,
    saw: Callable[[dict[str, object]], None],
    *,
    as_json: bool,
) -> None:
    damaged, gaps = 0, 0
    for line in lines:
        record = parse_line(line.text)
        if record is None or not line.whole:
            damaged += 1
            continue
        saw(record)
        if selection.wants(record):
            output.data(line.text.decode(errors="replace") if as_json else human(record))
        elif record.get("event") == "gap" and (
            selection.since is None or str(record["time"]) >= selection.since
        ):
            gaps += 1
    if damaged:
        output.note(f"note: {damaged} damaged lines are left out; see 'sandboxfs log --verify'")
    if gaps:
        output.note(f"note: the log has {gaps} gaps: what is asked for may have happened in them")


def human(record: dict[str, object]) -> str:
    """Write *record* on one line for a person."""
    if "event" in record:
        known = ("time", "seq", "event", "prev", "crc")
        details = [f"{key}: {_plain(value)}" for key, value in record.items() if key not in known]
        return "  ".join([_plain(record["time"]), f"-- {_plain(record['event'])}", *details])
    paths = [_path(record[key]) for key in ("path", "to") if key in record]
    verdict = "denied" if record.get("allowed") is False else "ok"
    words = [
        _plain(record["time"]),
        f"{verdict:6}",
        f"{_plain(record.get('op')):9}",
        " -> ".join(paths),
        f"{_plain(record.get('decision'))} by {_rule(record)}",
    ]
    if record.get("errno") is not None:
        words.append(_plain(record["errno"]))
    words.append(f"{_plain(record.get('command') or '?')}[{_plain(record.get('pid'))}]")
    return "  ".join(words)


def _rule(record: dict[str, object]) -> str:
    if record.get("rule") is None:
        return "no rule"
    return f"'{_plain(record['rule'])}' ({_plain(record.get('source'))})"


def _path(value: object) -> str:
    return output.shown(Path(value)) if isinstance(value, str) else _plain(value)


def _plain(value: object) -> str:
    """Write *value* on one line, whatever a damaged or hostile record has there."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in str(value))


def _verify(path: Path, name: str, served: _Served, *, as_json: bool) -> int:
    verdict = verify(path, name)
    for _ in range(_LOOKS - 1):
        if verdict.broken is None or served.gone:
            break
        # A daemon that lives may have been in the middle of a line.
        verdict = verify(path, name)
    if as_json:
        output.document({"name": name} | verdict.as_json())
    elif verdict.broken is not None:
        output.data(f"broken at {verdict.broken}")
    elif verdict.records:
        older = "" if verdict.first == 1 else "; older ones were rotated away"
        output.data(f"whole: {verdict.records} records, seq {verdict.first} to {verdict.last}{older}")
        output.data(f"head: {verdict.head}")
    else:
        output.data("whole: nothing is logged yet")
    return 0 if verdict.broken is None else EXIT_BROKEN
