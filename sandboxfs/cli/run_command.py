"""What does `sandboxfs run` do, from reading its options to its exit status?

Only what is ours to say is said here, on stderr; the rest is the program's own.
"""

import errno
import os
import resource
import signal
import sys
import time

from sandboxfs.cli import output
from sandboxfs.cli.run_options import (
    EXIT_CANNOT_EXECUTE,
    EXIT_NOT_FOUND,
    parse,
    request,
)
from sandboxfs.cli.running import Runner, Session
from sandboxfs.cli.views import Beginning
from sandboxfs.confine.choice import Confinement, forget
from sandboxfs.confine.supervisor import Outcome
from sandboxfs.control.advance import Waiting
from sandboxfs.errors import DaemonLost, MountFailed
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store


def carry_out(words: list[str], verb: str, waiting: Waiting | None) -> int:
    """Run a program as *words* say, with the daemon that is *waiting* if it fits; return the exit status."""
    arguments = parse(words, verb)
    asked = request(arguments)
    store = Store(Locations.from_environment())
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupted)
    if arguments.review or arguments.assert_no_writes or arguments.assert_writes_only:
        from sandboxfs.cli.concluding import check

        check(arguments)
    begun = time.time_ns()
    with Runner(store, asked, os.environ, waiting) as session:
        beginnings = [Beginning.of(view, begun) for view in session.views]
        _announce(session, quiet=arguments.quiet)
        # What comes after the program is imported while it starts.
        outcome = session.run(arguments.command, meanwhile=_import_the_ending)
    if outcome.held:
        output.warnings(["something else still holds the program's output open; what it writes now is lost"])
    status = _status(outcome, session, arguments.command)
    from sandboxfs.cli.concluding import conclude

    status = conclude(arguments, session, status, beginnings)
    if outcome.had_terminal and outcome.signalled in (signal.SIGINT, signal.SIGQUIT):
        _end_with_the_job(outcome.signalled)
    return status


def _import_the_ending() -> None:
    import sandboxfs.cli.concluding  # noqa: F401


class Told(Exception):
    """A signal told us to end before the program ran."""


def _interrupted(number: int, frame: object) -> None:
    raise Told(number)


def _end_with_the_job(number: int) -> None:
    """End by the signal that a key sent, and pass it to our process group.

    The program had the terminal to itself; without us the key would have reached all of the job: the script
    that we are a line of, the other programs of the pipeline.
    """
    others = signal.signal(number, signal.SIG_IGN)
    os.killpg(0, number)
    signal.signal(number, others)
    end_by(number)


def end_by(number: int) -> None:
    """End by a signal: a shell that sees us exit goes on with its script, else it does not."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _announce(session: Session, *, quiet: bool) -> None:
    """Tell what the program's world lacks or is weaker in than it might be expected to be."""
    for view in session.views:
        output.warnings(view.warnings)
    if session.choice.confinement is Confinement.LANDLOCK:
        why = session.choice.weaker
        because = "" if why is None else f" because bubblewrap cannot be used ({why})"
        output.warnings(
            [
                f"confined with Landlock{because}: the view is at {quoted(session.view.record.mountpoint)}, "
                "and modes, owners and times of your files, and other processes, are not out of reach"
            ]
        )
        if session.choice.mend is not None:
            output.note(f"hint: {session.choice.mend}")
    elif session.choice.confinement is Confinement.NONE and session.choice.weaker is not None:
        output.warnings([session.choice.weaker])
    withheld = session.program_environment().withheld
    if withheld and not quiet:
        output.note(f"sandboxfs: not passed on: {', '.join(withheld)} (pass one on with --env NAME)")
    if not quiet and session.confined_by_name:
        _hint_at_repository(session)


def _hint_at_repository(session: Session) -> None:
    """Say what git lacks in a work tree whose repository is elsewhere."""
    workspace = session.view.record.workspace
    if not (workspace / ".git").is_file():
        return
    from sandboxfs.cli.repository import repository_outside

    repository = repository_outside(workspace)
    if repository is not None and session.place(repository) is None:
        output.note(
            f"sandboxfs: git finds no repository: it is in {quoted(repository)}, which is out of reach\n"
            f"hint: show it with --allow {quoted(repository)}"
        )


def _status(outcome: Outcome, session: Session, command: list[str]) -> int:
    """Turn how the program fared into our exit status, and say what kept it from running."""
    if outcome.lost:
        raise DaemonLost(
            f"the daemon of sandbox '{session.name}' died; the program was ended",
            hint=f"its log is {quoted(session.view.store.places(session.name).log)}",
        )
    if outcome.status is not None:
        code = os.waitstatus_to_exitcode(outcome.status)
        return code if code >= 0 else 128 - code
    shown = quoted(command[0])
    if outcome.stage == "start":
        if outcome.error == errno.ENOENT:
            output.note(f"sandboxfs: cannot run {shown}: not found")
            _hint_elsewhere(command[0])
            return EXIT_NOT_FOUND
        output.note(f"sandboxfs: cannot run {shown}: {_reason(outcome)}")
        return EXIT_CANNOT_EXECUTE
    if outcome.stage == "enter":
        raise MountFailed(f"cannot enter {quoted(session.directory())} in the view: {_reason(outcome)}")
    if outcome.stage:
        raise MountFailed(f"cannot confine the program: {_reason(outcome)}")
    forget(session.view.store.locations.runtime / "bubblewrap")
    raise MountFailed(
        "the program could not be confined", hint="run 'sandboxfs doctor', or try --confine landlock"
    )


def _reason(outcome: Outcome) -> str:
    if outcome.error == errno.ELIBBAD:
        return "the interpreter that it names is missing"
    return os.strerror(outcome.error) if outcome.error else outcome.detail


def _hint_elsewhere(name: str) -> None:
    """Say where the program is for us, when it is only out of reach inside."""
    import shutil

    found = shutil.which(name)
    if found is not None:
        output.note(
            f"hint: it is {quoted(found)}, which is out of reach in the sandbox; "
            "show its directory with --allow DIR:ro, or use --home cow"
        )
