"""How is it told what a run did, and what is done about it at the end?

On stderr, in a few lines: what changed, what was refused, what did not hold, and what to type next.
Committing, discarding and looking are the verbs themselves.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.aftermath import Deeds
from sandboxfs.cli.terminal import Terminal
from sandboxfs.errors import SandboxError, UsageError
from sandboxfs.paths import quoted

# So many of a kind are named.
_NAMED = 20
_WORDS = {"A": "added", "M": "modified", "D": "deleted", "R": "renamed", "T": "of another type"}


def tell(happened: Sequence[Deeds], broken: Sequence[str], *, undecided: bool) -> None:
    """Write what happened for a person, and how to go on while it is *undecided*."""
    for one in happened:
        _tell_changes(one, alone=len(happened) == 1)
    refused = [denied for one in happened for denied in one.denials]
    for denied in refused[:_NAMED]:
        times = "" if denied.times == 1 else f" ({denied.times:,} times)"
        output.note(f"sandboxfs: {denied.sentence}{times}")
    if len(refused) > _NAMED:
        output.note(f"sandboxfs: … and {len(refused) - _NAMED:,} more; see 'sandboxfs log --denied'")
    for line in broken:
        output.note(f"sandboxfs: does not hold: {line}")
    for one in happened if undecided else ():
        if one.changes or one.folded:
            output.note(
                f"review: sandboxfs diff -s {one.name}; sandboxfs commit -s {one.name}; "
                f"sandboxfs discard -s {one.name} --all"
            )


def _tell_changes(one: Deeds, *, alone: bool) -> None:
    if not one.changes and not one.folded:
        if alone:
            output.note(f"sandboxfs: nothing changed in sandbox '{one.name}'")
        return
    counts = [
        f"{count:,} {word}"
        for letter, word in _WORDS.items()
        if (count := sum(change.letter == letter for change in one.changes))
    ]
    output.note(
        f"sandboxfs: sandbox '{one.name}' of {quoted(one.workspace)}: {', '.join(counts) or 'no files'}"
    )
    fresh = [change for change in one.changes if change.fresh]
    for line in [
        *(f"  {change}" for change in fresh[:_NAMED]),
        *(f"  {line}" for line in one.folded[:_NAMED]),
    ]:
        output.note(line)
    more, before = max(0, len(fresh) - _NAMED), len(one.changes) - len(fresh)
    if more or before:
        words = [*([f"{more:,} more"] if more else []), *([f"{before:,} from before"] if before else [])]
        output.note(f"  … and {' and '.join(words)}")


def write_json(
    path: str, document: dict[str, object], happened: Sequence[Deeds], broken: Sequence[str]
) -> None:
    """Write what happened to the file at *path* for a program."""
    whole = document | {"sandboxes": [one.as_json() for one in happened], "broken": list(broken)}
    try:
        Path(path).write_text(json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"--json: cannot write {quoted(path)}: {error.strerror}") from error


def settle(happened: Sequence[Deeds], *, commit: bool, quiet: bool) -> None:
    """Commit, or else discard, all changes."""
    from sandboxfs.cli import commit as committing
    from sandboxfs.cli import discard as discarding

    for one in happened:
        if one.changes or one.folded:
            run = committing.run if commit else discarding.run
            words = ["-s", one.name, "--yes", *([] if commit else ["--all"])]
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


def ask(happened: Sequence[Deeds]) -> None:
    """Let the person decide about the changes, one sandbox after the other."""
    changed = [one for one in happened if one.changes or one.folded]
    if not changed:
        return
    with Terminal.open(
        "review", "leave --review out and use 'sandboxfs diff' and 'sandboxfs commit'"
    ) as terminal:
        for one in changed:
            while not _decided(terminal, one):
                pass


def _decided(terminal: Terminal, one: Deeds) -> bool:
    """Ask once; False when there is still something to decide."""
    from sandboxfs.cli import commit, diff, discard

    answer = terminal.ask(f"{one.name}: [d]iff, [c]ommit, [p]ick, [k]eep or discard [x]?")
    try:
        match (answer or "k")[:1].lower():
            case "d":
                diff.run(["-s", one.name])
            case "c":
                commit.run(["-s", one.name, "--yes"])
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
