"""`sandboxfs gc`: give back the space that finished commits and discards take."""

import argparse
from datetime import UTC, datetime

from sandboxfs.cli import output
from sandboxfs.cli.gathering import Gathered, gather
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.progress import Progress
from sandboxfs.cli.recovering import bring_to_end, interrupted
from sandboxfs.control.mounts import MountTable
from sandboxfs.control.sandboxes import observe, select
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, SandboxError, UsageError
from sandboxfs.state.audit_selection import parse_since
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

DESCRIPTION = """\
Remove the records of commits, discards and undos that are done and older than a given
time; they can no longer be undone then. A commit that was interrupted is finished or
taken back first; where that fails, its record stays. What was noted of the workspace
goes too, from sandboxes that hold no changes, have no records left and are not mounted.
Nothing else in a sandbox or a workspace is touched."""

EXAMPLES = ["sandboxfs gc", "sandboxfs gc --all --older-than 7d", "sandboxfs gc --dry-run --older-than 0s"]

DEFAULT_AGE = "24h"


class Arguments(argparse.Namespace):
    sandbox: str | None
    all: bool
    older_than: str
    dry_run: bool
    json: bool


def parser() -> Parser:
    made = verb_parser("gc", DESCRIPTION, EXAMPLES, [NoSuchSandbox, SandboxBusy])
    add_sandbox_option(made)
    made.add_argument("--all", action="store_true", help="all sandboxes")
    made.add_argument(
        "--older-than",
        metavar="TIME",
        default=DEFAULT_AGE,
        help=f"a length of time such as 30m, 24h or 7d, or a time; default: {DEFAULT_AGE}",
    )
    made.add_argument("--dry-run", action="store_true", help="only say what would go")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.all and arguments.sandbox is not None:
        raise UsageError("--all and -s exclude each other")
    before = datetime.fromisoformat(parse_since(arguments.older_than, datetime.now(UTC)))
    store = Store(Locations.from_environment())
    names = store.names() if arguments.all else [select(store, arguments.sandbox).name]
    gathered: list[Gathered] = []
    skipped: dict[str, str] = {}
    with Progress("removing") as progress:
        for name in names:
            try:
                problem = None if arguments.dry_run else _recovered(store, name)
                found = gather(
                    store.places(name), before, dry_run=arguments.dry_run, progress=progress.advance
                )
                gathered.append(found if problem is None else found.with_problem(problem))
            except (SandboxError, OSError) as error:
                if not arguments.all:
                    raise _told(name, error) from error
                skipped[name] = _told(name, error).message
    if not arguments.dry_run:
        store.sweep()
    _tell(gathered, skipped, arguments)
    return 0


def _recovered(store: Store, name: str) -> str | None:
    """Bring to its end what was interrupted; say why not where that is impossible."""
    try:
        if interrupted(store.places(name)) is not None:
            bring_to_end(store, observe(store, store.load(name), MountTable.read()))
    except SandboxBusy:
        raise
    except SandboxError as error:
        return error.message
    return None


def _told(name: str, error: SandboxError | OSError) -> SandboxError:
    if isinstance(error, SandboxError):
        return error
    return UsageError(f"cannot clean up sandbox '{name}': {error.strerror}")


def _tell(gathered: list[Gathered], skipped: dict[str, str], arguments: Arguments) -> None:
    size = sum(one.size for one in gathered)
    if arguments.json:
        output.document(
            {
                "dry_run": arguments.dry_run,
                "bytes": size,
                "sandboxes": [
                    {
                        "name": one.name,
                        "records": [record.as_json() for record in one.old],
                        "baseline_bytes": one.baseline,
                        "unfinished": list(one.unfinished),
                        "problems": list(one.problems),
                    }
                    for one in gathered
                ],
                "skipped": skipped,
            }
        )
        return
    would = "would remove" if arguments.dry_run else "removed"
    for one in gathered:
        if one.old or one.baseline:
            output.data(f"{one.name}: {would} {_amount(one)}")
        for number in one.unfinished:
            output.note(f"note: record {number} of '{one.name}' is not finished and stays")
        output.warnings(f"'{one.name}': {problem}" for problem in one.problems)
    output.warnings(skipped.values())
    if any(one.old for one in gathered):
        verb = "would be" if arguments.dry_run else "is"
        output.note(f"{output.human_size(size)} {verb} free; undo of these records {verb} no longer possible")
    elif size == 0:
        output.note("nothing is old enough to go")


def _amount(one: Gathered) -> str:
    parts = []
    if one.old:
        numbers = ", ".join(f"{record.number} ({record.kind})" for record in one.old)
        parts.append(f"{'records' if len(one.old) > 1 else 'record'} {numbers}")
    if one.baseline:
        parts.append("notes of the workspace")
    return f"{' and '.join(parts)}, {output.human_size(one.size)}"
