"""The report of a run: what it did, and what is done about it at the end.

On stderr, in a few lines: what changed, what was refused, what did not hold, and what to type next.
Committing, discarding and looking are the verbs themselves.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.run_command import EXIT_BROKEN, Arguments, assertions
from sandboxfs.cli.terminal import Terminal, can_ask, confirmed
from sandboxfs.cli.text import changes, left_out
from sandboxfs.codec import document
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.paths import counted, quoted
from sandboxfs.runs.open_run import OpenRun
from sandboxfs.runs.run import RunResult, ViewResult, leftovers
from sandboxfs.service.workspace import holds_home, user_path


def check(arguments: Arguments) -> None:
    """Raise `UsageError`, before anything is run, for what could not be done in the end."""
    assertions(arguments).check()
    if arguments.review:
        check_can_review()


def conclude(arguments: Arguments, session: OpenRun, result: RunResult) -> int:
    """Tell what a run did, and do what is to be done about it; return the exit status."""
    happened, failed = result.views, result.broken
    everything = frozenset(one.name for one in happened)
    settled: frozenset[str] = frozenset()
    if arguments.discard or (arguments.review and not failed):
        settled = everything
    elif arguments.commit and result.program.returncode == 0 and not failed:
        settled = to_commit(arguments, session)
    if not arguments.quiet or failed:
        # Nobody may be there to read it: the terminal may have been closed.
        with suppress(OSError):
            tell(happened, failed, undecided=everything - settled, kept=result.kept)
    if arguments.json is not None:
        about = {
            "name": session.name,
            "command": arguments.command,
            "status": result.program.returncode,
            "confinement": session.choice.confinement.value,
            "network": arguments.network,
            "kept": result.kept,
        }
        write_json(arguments.json, about, happened, failed)
    if arguments.review and not failed:
        ask(happened)
    elif settled:
        meant = [one for one in happened if one.name in settled]
        settle(meant, commit=arguments.commit, quiet=arguments.quiet)
    return EXIT_BROKEN if failed else result.program.returncode


def check_places(arguments: Arguments, session: OpenRun) -> None:
    """Raise `UsageError`, before COMMAND runs, for a commit that was not plainly asked for."""
    first = session.view.record
    shown = {view.record.workspace for view in session.views}
    for given in arguments.commit_also:
        if _place(given) not in shown:
            raise UsageError(
                f"--commit-also {quoted(given)}: not a directory that this run shows copy-on-write",
                hint=f"it shows {', '.join(quoted(path) for path in sorted(shown))}",
            )
    if (
        arguments.commit
        and holds_home(first.workspace)
        and first.workspace not in map(_place, arguments.commit_also)
    ):
        raise UsageError(
            f"--commit would write into your home, {quoted(first.workspace)}",
            hint=f"if that is meant, add --commit-also {quoted(first.workspace)}",
        )


def check_leftovers(arguments: Arguments, session: OpenRun) -> None:
    """Ask, before COMMAND runs, whether changes from before are to be settled with those of this run."""
    verb = "--discard" if arguments.discard else "--commit"
    names = to_commit(arguments, session)
    for view in session.views:
        if not (arguments.discard or view.record.name in names):
            continue
        count = leftovers(view, all_of_them=arguments.discard)
        if not count:
            continue
        what = f"sandbox '{view.record.name}' holds {changes(count)} from before"
        does = "drop" if arguments.discard else "apply"
        if not can_ask():
            raise UsageError(
                f"{what}, which {verb} would {does} as well",
                hint=f"look at them with 'sandboxfs diff -s {view.record.name}' and commit or discard them, "
                "or use another sandbox with --new",
            )
        if not confirmed(f"{what[0].upper()}{what[1:]}, which {verb} will {does} as well. Go on?"):
            raise UsageError("nothing was run", hint="use another sandbox with --new")


def _place(given: str) -> Path:
    return Path(os.path.realpath(user_path(given)))


def to_commit(arguments: Arguments, session: OpenRun) -> frozenset[str]:
    """Return the names of the sandboxes that `--commit` is about: companions only where they are named."""
    named = {_place(given) for given in arguments.commit_also}
    return frozenset(
        view.record.name for view in session.views if view is session.view or view.record.workspace in named
    )


# So many of a kind are named.
_NAMED = 20
_WORDS = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "T": "of another type"}


def tell(
    happened: Sequence[ViewResult], broken: Sequence[str], *, undecided: Collection[str], kept: bool
) -> None:
    """Write what happened for a person, and how to go on with the sandboxes named in *undecided*.

    Where the sandbox was not *kept* there was nothing in it.
    """
    if not kept:
        output.note("sandboxfs: nothing changed, and no sandbox is kept")
    for one in happened if kept else ():
        _tell_changes(one, alone=len(happened) == 1)
    refused = [denied for one in happened for denied in one.denials]
    for denied in refused[:_NAMED]:
        times = "" if denied.times == 1 else f" ({denied.times:,} times)"
        output.note(f"sandboxfs: {denied.sentence}{times}")
    more = max(0, len(refused) - _NAMED) + sum(one.seen.more_denials for one in happened)
    if more:
        output.note(f"sandboxfs: … and {more:,} more; see 'sandboxfs log --denied'")
    for line in broken:
        output.note(f"sandboxfs: does not hold: {line}")
    for one in happened:
        if one.name in undecided and one.changes:
            output.note(
                f"review: sandboxfs diff -s {one.name}; sandboxfs commit -s {one.name}; "
                f"sandboxfs discard -s {one.name} --all"
            )


def _tell_changes(one: ViewResult, *, alone: bool) -> None:
    if not one.changes and not one.folded:
        if alone:
            output.note(f"sandboxfs: nothing changed in sandbox '{one.name}'")
        return
    counts = [
        f"{count:,} {word}"
        for letter, word in _WORDS.items()
        if (count := sum(change.letter == letter for change in one.changes))
    ]
    words = ", ".join(counts)
    total = f"{counted(len(one.changes), 'change')}: {words}" if counts else "no changes"
    output.note(f"sandboxfs: sandbox '{one.name}' of {quoted(one.workspace)}: {total}")
    fresh = [change for change in one.changes if change.fresh]
    marked = [change for change in fresh[_NAMED:] if change.marks]
    for change in (*fresh[:_NAMED], *marked):
        output.note(f"  {change}")
    more, before = max(0, len(fresh) - _NAMED - len(marked)), len(one.changes) - len(fresh)
    if more or before:
        rest = [*([f"{more:,} more"] if more else []), *([f"{before:,} from before"] if before else [])]
        output.note(f"  … and {' and '.join(rest)}")
    for sentence in left_out(one.folded):
        output.note(f"  {sentence}")


def _as_json(one: ViewResult) -> dict[str, object]:
    from sandboxfs.service.review import left_out_json

    return {
        "name": one.name,
        "workspace": str(one.workspace),
        "changes": [change.as_json() for change in one.changes],
        "left_out": left_out_json(one.folded),
        "folded": [line.as_json() for line in one.folded],
        "denials": [denied.as_json() for denied in one.denials],
        "more_denials": one.seen.more_denials,
    }


def write_json(
    path: str, about: dict[str, object], happened: Sequence[ViewResult], broken: Sequence[str]
) -> None:
    """Write what happened to the file at *path* for a program."""
    whole = about | {"sandboxes": [_as_json(one) for one in happened], "broken": list(broken)}
    try:
        Path(path).write_text(document(whole) + "\n")
    except OSError as error:
        raise UsageError(f"--json: cannot write {quoted(path)}: {error.strerror}") from error


def settle(happened: Sequence[ViewResult], *, commit: bool, quiet: bool) -> None:
    """Commit, or else discard, all changes."""
    from sandboxfs.cli import commit as committing
    from sandboxfs.cli import discard as discarding

    for one in happened:
        if one.changes or (one.folded and not commit):
            run = committing.run if commit else discarding.run
            words = ["-s", one.name, "--yes", "--all"]
            if quiet:
                _run_quietly(run, words)
            else:
                run(words)


def _run_quietly(run: Callable[[list[str]], int], words: list[str]) -> None:
    """Run a verb, and tell no more of its result than what stayed although it was meant."""
    with redirect_stdout(io.StringIO()) as result:
        run([*words, "--json"])
    for path in json.loads(result.getvalue()).get("stayed", ()):
        output.note(f"note: {quoted(path)} changed meanwhile, and stays")


def ask(happened: Sequence[ViewResult]) -> None:
    """Let the person decide about the changes, one sandbox after the other."""
    changed = [one for one in happened if one.changes]
    if not changed:
        return
    with Terminal.open(
        "review", "leave --review out and use 'sandboxfs diff' and 'sandboxfs commit'"
    ) as terminal:
        for one in changed:
            while not _decided(terminal, one):
                pass


def _decided(terminal: Terminal, one: ViewResult) -> bool:
    """Ask once; False when there is still something to decide."""
    from sandboxfs.cli import commit, diff, discard

    answer = terminal.ask(f"{one.name}: [d]iff, [c]ommit, [p]ick, [k]eep or discard [x]?")
    try:
        match (answer or "k")[:1].lower():
            case "d":
                diff.run(["-s", one.name])
            case "c":
                commit.run(["-s", one.name, "-p" if holds_home(one.workspace) else "--yes"])
                return True
            case "p":
                commit.run(["-s", one.name, "-p"])
            case "k":
                output.note(f"kept; sandboxfs diff -s {one.name}")
                return True
            case "x":
                discard.run(["-s", one.name, "--all", "--yes"])
                return True
            case _:
                terminal.say("d, c, p, k or x")
    except SandboxError as error:
        print(error.as_text(as_json=False), file=sys.stderr)
    return False


def check_can_review() -> None:
    """Raise unless there is a terminal to ask on."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        raise UsageError("--review asks on a terminal, and there is none") from error
