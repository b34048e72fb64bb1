"""`sandboxfs why`: may this path be used, which rule says so, and what would change it?

Of a mounted sandbox its daemon is asked, which knows what was changed in the session; of another one its
record. The view itself is not looked at.
"""

import argparse
from collections.abc import Iterator

from sandboxfs.cli import output
from sandboxfs.cli.following import followed
from sandboxfs.cli.live import ShownRule, ask_daemon, selected, shown_rule
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import place_in
from sandboxfs.control.sandboxes import Sandbox
from sandboxfs.errors import DaemonLost, NoSuchSandbox
from sandboxfs.paths import quoted
from sandboxfs.policy.answers import described_explanation, present_in
from sandboxfs.policy.explain import explain
from sandboxfs.policy.model import Access
from sandboxfs.state.record import SandboxRecord
from sandboxfs.state.store import Store

DESCRIPTION = """\
Explain what the policy says about an access to PATH: the decision, the rule that gave
it and where that is written, the rules that were asked before and did not match, and
the smallest change that would allow it. PATH need not exist; one that ends in '/' is a
directory. The policy of a mounted sandbox is the one in force, of another one that of
its last mount."""

EXAMPLES = [
    "sandboxfs why .env",
    "sandboxfs why src/main.py write",
    "sandboxfs why -s app --json build/ delete",
]

EXIT_DENIED = 1
# So many rules that did not match are shown to a person.
_SHOWN = 20


class Arguments(argparse.Namespace):
    path: str
    access: str
    sandbox: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser(
        "why", DESCRIPTION, EXAMPLES, [NoSuchSandbox, DaemonLost], {EXIT_DENIED: "the access is denied"}
    )
    add_sandbox_option(made)
    made.add_argument("path", metavar="PATH", help="a path in the workspace or in the view")
    made.add_argument(
        "access",
        nargs="?",
        default=Access.READ.value,
        metavar="ACCESS",
        choices=[access.value for access in Access],
        help="read, write, delete or execute; default: read",
    )
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    store, sandbox = selected(arguments.sandbox)
    place, is_directory = followed(store, sandbox.record, place_in(sandbox.record, arguments.path))
    if is_directory or arguments.path.endswith("/"):
        place += "/"
    answer = _answer(store, sandbox, place or ".", Access(arguments.access))
    _add_mount(answer, sandbox.record, Access(arguments.access))
    if arguments.json:
        output.document({"name": sandbox.name, "state": sandbox.state} | answer)
    else:
        for line in _lines(answer):
            output.data(line)
    return 0 if answer.get("allowed") is True else EXIT_DENIED


def _answer(store: Store, sandbox: Sandbox, place: str, access: Access) -> dict[str, object]:
    place = place.removeprefix("/") or "."
    if sandbox.state == "mounted":
        return ask_daemon(store, sandbox, "why", {"path": place, "access": access.value})
    record = sandbox.record
    found = explain(
        record.settings.policy,
        place,
        access,
        root=str(record.workspace),
        exists=present_in(record.workspace, place),
    )
    return described_explanation(found)


def _add_mount(answer: dict[str, object], record: SandboxRecord, access: Access) -> None:
    """Say it when the kernel refuses what the policy would allow."""
    if record.read_only and access in (Access.WRITE, Access.DELETE) and answer.get("allowed") is True:
        answer["allowed"], answer["errno"] = False, "EROFS"
        path = quoted(str(answer.get("path")))
        answer["sentence"] = f"{access.value} denied for {path}: the view is mounted with --read-only"
        answer["remedies"] = [{"where": "when mounting", "text": "leave --read-only out"}]


def _lines(answer: dict[str, object]) -> Iterator[str]:
    yield str(answer.get("sentence"))
    if answer.get("decided_at") not in (answer.get("path"), "."):
        yield f"  the rule matches {quoted(str(answer.get('decided_at')))}, and so all that is in it"
    yield from _passed([shown_rule(rule) for rule in _items(answer, "passed")])
    remedies = _items(answer, "remedies")
    if remedies:
        yield "what would allow it:"
    for remedy in remedies:
        if isinstance(remedy, dict):
            yield f"  {remedy.get('where')}:"
            yield from (f"    {line}" for line in str(remedy.get("text")).splitlines())


def _passed(rules: list[ShownRule]) -> Iterator[str]:
    if rules:
        yield "asked before, and not matching:"
    yield from (f"  {quoted(str(rule))} ({rule.source})" for rule in rules[:_SHOWN])
    if len(rules) > _SHOWN:
        yield f"  … and {len(rules) - _SHOWN} more"


def _items(answer: dict[str, object], key: str) -> list[object]:
    found = answer.get(key)
    return found if isinstance(found, list) else []
