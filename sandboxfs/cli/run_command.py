"""`sandboxfs run`, from its options to its exit status.

Only what is ours to say is said here, on stderr; the rest is the program's own.
"""

import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePath

from sandboxfs.cli import output
from sandboxfs.cli.run_options import Arguments, assertions, parse, request
from sandboxfs.paths import quoted
from sandboxfs.service import run as running
from sandboxfs.service.open_run import Confinement, OpenRun, ProgramEnd, ProgramRequest
from sandboxfs.service.prestart import WaitingDaemon
from sandboxfs.service.run import ProgramResult

# Programs that confine what they start in user namespaces, which no program of a run can make; the option
# that leaves it to the run; and words that say the same.
_OWN_SANDBOXES = {
    "codex": ("--sandbox danger-full-access", ("danger-full-access", "--dangerously-bypass-", "--yolo")),
    "chromium": ("--no-sandbox", ("--no-sandbox",)),
    "chromium-browser": ("--no-sandbox", ("--no-sandbox",)),
    "google-chrome": ("--no-sandbox", ("--no-sandbox",)),
}
# Programs that start another, which their words name.
_STARTERS = frozenset(
    {"bunx", "command", "env", "exec", "nice", "nohup", "npx", "pnpx", "setsid", "sudo", "time"}
)
_SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
_OPTION_OR_VARIABLE = re.compile(r"-|\w+=|\d+$")
_TEXT_FOLLOWS = re.compile(r"-[a-z]*c")


def at_own_sandbox(command: list[str], confinement: Confinement) -> None:
    """Say, before *command* starts, that its own sandbox cannot work in a run, and which option helps."""
    if confinement is Confinement.NONE:
        return
    name = _started(command)
    option, said = _OWN_SANDBOXES.get(name, ("", ()))
    if option and not any(word in given for given in command for word in said):
        output.note(
            f"sandboxfs: {name} cannot make a sandbox of its own in a run, which confines it already\n"
            f"hint: {name} {option}"
        )


def _started(command: list[str]) -> str:
    """Return what the program is called that *command* is about: `codex` of `npx --yes @openai/codex`."""
    rest = list(command)
    while rest:
        # What follows an @ is the version of a package.
        name = PurePath(rest.pop(0)).name.partition("@")[0]
        if name == "npm" and rest[:1] in (["exec"], ["x"]):
            del rest[0]
        elif name in _SHELLS:
            texts = [after for word, after in pairwise(rest) if _TEXT_FOLLOWS.fullmatch(word)]
            rest = texts[0].split() if texts else []
        elif name not in _STARTERS:
            return name
        while rest and _OPTION_OR_VARIABLE.match(rest[0]):
            del rest[0]
    return ""


def carry_out(words: list[str], verb: str, waiting: WaitingDaemon | None) -> int:
    """Run a program as *words* say, with the daemon that is *waiting* if it fits; return the exit status."""
    arguments = parse(words, verb)
    asked = request(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupted)
    if arguments.review or arguments.assert_no_writes or arguments.assert_writes_only:
        from sandboxfs.cli.run_report import check

        check(arguments)
    told = _Told(arguments, verb)
    program = ProgramRequest(tuple(arguments.command), marked=verb == "shell")
    result = running.run(asked, program, os.environ, assertions(arguments), told, waiting)
    from sandboxfs.cli.run_report import conclude

    status = conclude(arguments, told.session, result)
    if result.by_key is not None:
        _end_with_the_job(result.by_key)
    return status


class _Told:
    """What a person is told while a program is run."""

    session: OpenRun

    def __init__(self, arguments: Arguments, verb: str) -> None:
        self._arguments = arguments
        self._verb = verb

    def opened(self, session: OpenRun) -> None:
        self.session = session
        arguments = self._arguments
        if arguments.commit or arguments.discard:
            from sandboxfs.cli.run_report import check_leftovers, check_places

            check_places(arguments, session)
            check_leftovers(arguments, session)
        _announce(session, quiet=arguments.quiet)
        if not arguments.quiet:
            _welcome(session, arguments, self._verb)

    def warn(self, sentence: str) -> None:
        output.warnings([sentence])

    def starting(self) -> None:
        # What comes after the program is imported while it starts.
        import sandboxfs.cli.run_report  # noqa: F401

    def ended(self, session: OpenRun, end: ProgramEnd, program: ProgramResult) -> None:
        if program.problem is not None:
            output.note(f"sandboxfs: {program.problem}")
        if program.hint is not None:
            output.note(f"hint: {program.hint}")
        if self._arguments.quiet:
            return
        if self._verb == "shell":
            # Its status is that of the last command that was typed.
            output.note(f"sandboxfs: left sandbox '{session.name}'")
        elif program.returncode and end.status is not None:
            at_network(end, session.choice.confinement, network=session.request.network)

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Stand in the root directory meanwhile: this process has one thread."""
        try:
            here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            # The current directory is gone.
            yield
            return
        try:
            os.chdir("/")
            yield
        finally:
            os.fchdir(here)
            os.close(here)


def at_network(outcome: ProgramEnd, confinement: Confinement, *, network: bool) -> None:
    """Say that a program which failed had no network, if it tried to use one or nobody can know."""
    if outcome.offline:
        output.note(
            "sandboxfs: the program tried to use the network, which is off\n"
            "hint: sandboxfs run --network … turns it on"
        )
    elif confinement is Confinement.LANDLOCK and not network:
        output.note(
            "sandboxfs: the program failed, and the network was off\n"
            "hint: if it needs the network, sandboxfs run --network … turns it on"
        )


def _fate(arguments: Arguments) -> str:
    """Say what becomes of the changes of a shell."""
    if arguments.discard:
        return "dropped then"
    if arguments.commit:
        return "committed then, if its last command succeeded"
    return "asked about then" if arguments.review else "kept for review"


def _welcome(session: OpenRun, arguments: Arguments, verb: str) -> None:
    if verb == "shell":
        output.note(
            f"sandboxfs: a shell in sandbox '{session.name}' of {quoted(session.view.record.workspace)}; "
            f"'exit' leaves it, and what it changed is {_fate(arguments)}"
        )
    at_own_sandbox(arguments.command, session.choice.confinement)


class EndedBySignal(Exception):
    """A signal told us to end before the program ran."""


def _interrupted(number: int, frame: object) -> None:
    raise EndedBySignal(number)


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


def _announce(session: OpenRun, *, quiet: bool) -> None:
    """Tell what the program's world lacks or is weaker in than it might be expected to be."""
    if session.remark is not None and not quiet:
        output.note(f"sandboxfs: {session.remark}")
    for view in session.views:
        output.warnings(view.warnings)
    output.warnings(running.weaknesses(session))
    if session.choice.confinement is Confinement.LANDLOCK and session.choice.mend is not None:
        output.note(f"hint: {session.choice.mend}")
    if quiet:
        return
    withheld = session.program_environment().withheld
    if withheld:
        names = ", ".join(quoted(name)[1:-1] for name in withheld)
        output.note(f"sandboxfs: variables not passed on: {names} (pass one on with --env NAME)")
    _hint_at_repository(session)


def _hint_at_repository(session: OpenRun) -> None:
    """Say what git lacks in a work tree whose repository is elsewhere."""
    repository = running.repository_out_of_reach(session)
    if repository is None:
        return
    # Under Landlock no place but the system's is where the file `.git` says.
    hint = f"show it with --allow {quoted(repository)}"
    output.note(
        f"sandboxfs: git finds no repository: it is in {quoted(repository)}, which is out of reach\n"
        f"hint: {hint if session.confined_by_name else 'only under bubblewrap it can be shown, with --allow'}"
    )
