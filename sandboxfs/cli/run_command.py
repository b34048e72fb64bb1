"""`sandboxfs run`, from its options to its exit status.

Only what is ours to say is said here, on stderr; the rest is the program's own.
"""

import argparse
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path, PurePath

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, PolicyArguments, add_policy_options, policy_request, verb_parser
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.assertions import Assertions
from sandboxfs.runs import run as running
from sandboxfs.runs.open_run import Confinement, OpenRun, ProgramEnd, ProgramRequest
from sandboxfs.runs.run import CANNOT_EXECUTE, NOT_FOUND, ProgramResult
from sandboxfs.runs.run_views import (
    CONFINEMENTS,
    HOMES,
    RunRequest,
    confinement_called,
    home_called,
    variables_of,
)
from sandboxfs.service.prestart import WaitingDaemon
from sandboxfs.service.select import sandbox_around, sandbox_of_variable
from sandboxfs.service.workspace import current_directory

# Options

EXIT_BROKEN = 1
EXIT_FAILED = 125

DESCRIPTION = """\
Run COMMAND in a copy-on-write view of the workspace, which is the git work tree around
the current directory, or that directory itself where there is none. COMMAND finds
everything where it always is, cannot reach anything else of yours, and has no network.
What it changed is kept for review."""

EXAMPLES = [
    "sandboxfs run --network -- npm install",
    "sandboxfs run --home cow --network --env ANTHROPIC_API_KEY -- claude",
    "sandboxfs run --assert-writes-only 'build/**' -- make",
    "sandboxfs run -s app -- pytest",
]
ENDINGS = {
    0: "COMMAND's own status, whatever it is",
    EXIT_BROKEN: "what was asserted does not hold",
    EXIT_FAILED: "sandboxfs failed",
    CANNOT_EXECUTE: "COMMAND cannot be executed",
    NOT_FOUND: "COMMAND is not found",
}


class Arguments(PolicyArguments):
    command: list[str]
    workspace: str | None
    toplevel: bool
    here: bool
    sandbox: str | None
    new: bool
    confine: str
    network: bool
    home: str
    env: list[str]
    clear_env: bool
    env_all: bool
    assert_no_writes: list[str]
    assert_writes_only: list[str]
    assert_no_denials: bool
    commit: bool
    commit_also: list[str]
    discard: bool
    review: bool
    quiet: bool
    json: str | None


def parser(verb: str = "run") -> Parser:
    if verb == "run":
        made = verb_parser(verb, DESCRIPTION, EXAMPLES, [], ENDINGS, passes_status=True)
        made.usage = "sandboxfs run [options] [--] COMMAND [ARGUMENT …]"
    else:
        description = f"{DESCRIPTION}\nHere COMMAND is your shell."
        made = verb_parser(verb, description, ["sandboxfs shell --toplevel"], [], ENDINGS, passes_status=True)
    # Options end at the first word of the command, which is the program's own with all that follows it.
    made.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments"
    )
    where = made.add_argument_group("where")
    where.add_argument(
        "--workspace",
        metavar="DIR",
        help="the directory to work on; default: the git work tree around the current directory, "
        "or that directory where there is none of yours",
    )
    where.add_argument(
        "--toplevel", action="store_true", help="the git work tree around it, whoever owns that"
    )
    where.add_argument("--here", action="store_true", help="the current directory itself")
    where.add_argument("-s", "--sandbox", metavar="NAME", help="this sandbox; joins it when it is mounted")
    where.add_argument("--new", action="store_true", help="a new sandbox, also where one could be resumed")
    _add_confinement_options(made)
    add_policy_options(made, allow="allow a path, also outside the workspace; default: rw")
    _add_ending_options(made)
    return made


def _add_ending_options(made: Parser) -> None:
    held = made.add_argument_group("asserting", "exit 1 if it does not hold, and say what was done")
    held.add_argument(
        "--assert-no-writes",
        action="append",
        default=[],
        metavar="GLOB",
        help="nothing was written that GLOB names",
    )
    held.add_argument(
        "--assert-writes-only",
        action="append",
        default=[],
        metavar="GLOB",
        help="nothing else was written than what GLOB names",
    )
    held.add_argument("--assert-no-denials", action="store_true", help="nothing was refused by a rule")
    end = made.add_argument_group("at the end")
    what = end.add_mutually_exclusive_group()
    what.add_argument(
        "--commit",
        action="store_true",
        help="apply the workspace's changes when COMMAND succeeded and all holds",
    )
    what.add_argument("--discard", action="store_true", help="drop the changes")
    what.add_argument("--review", action="store_true", help="ask what to do with the changes")
    end.add_argument(
        "--commit-also",
        action="append",
        default=[],
        metavar="DIR",
        help="with --commit: apply the changes of DIR too, which --allow or --home cow shows",
    )
    end.add_argument("--quiet", action="store_true", help="say nothing unless something is wrong")
    end.add_argument("--json", metavar="FILE", help="write what happened to FILE")


def _add_confinement_options(made: Parser) -> None:
    kept = made.add_argument_group("confinement")
    kept.add_argument(
        "--confine",
        choices=CONFINEMENTS,
        default=RunRequest.confine.value,
        metavar="WORD",
        help="what keeps COMMAND in: bubblewrap, landlock, none, or auto, the default: the strongest "
        "that this machine allows",
    )
    kept.add_argument("--network", action="store_true", help="let COMMAND use the network")
    kept.add_argument(
        "--home",
        choices=HOMES,
        default=RunRequest.home.value,
        help="an empty home of the sandbox's own, yours copy-on-write without its secrets, or none",
    )
    kept.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass on a variable, or all that match a glob, or set one",
    )
    how_much = kept.add_mutually_exclusive_group()
    how_much.add_argument("--env-all", action="store_true", help="pass on all variables, secrets too")
    how_much.add_argument("--clear-env", action="store_true", help="pass on only what every program needs")


def parse(words: list[str], verb: str) -> Arguments:
    """Read the command line of *verb*."""
    arguments = parser(verb).parse_args(words, namespace=Arguments())
    if arguments.command[:1] == ["--"]:
        del arguments.command[0]
    if verb == "shell":
        if arguments.command:
            raise UsageError("'shell' takes no COMMAND", hint="use 'sandboxfs run COMMAND'")
        arguments.command = [os.environ.get("SHELL") or "/bin/sh"]
    if not arguments.command or not arguments.command[0]:
        raise UsageError("there is no COMMAND to run", hint="sandboxfs run [options] COMMAND …")
    return arguments


def request(arguments: Arguments) -> RunRequest:
    """Say what *arguments* ask for."""
    if arguments.sandbox is not None and arguments.new:
        raise UsageError("-s names a sandbox that is there, --new makes one: choose")
    ways = [arguments.toplevel, arguments.here, bool(arguments.workspace or arguments.sandbox)]
    if sum(ways) > 1:
        raise UsageError("--toplevel, --here, --workspace and -s each name a workspace: choose")
    if arguments.commit_also and not arguments.commit:
        raise UsageError("--commit-also goes with --commit")
    if arguments.json == "-":
        raise UsageError(
            "--json -: standard output is COMMAND's", hint="name a file; one that is called '-' is './-'"
        )
    workspace, sandbox = arguments.workspace, arguments.sandbox
    if workspace is None and sandbox is None:
        if not (arguments.here or arguments.toplevel or arguments.new):
            sandbox, remark = sandbox_of_variable(Path(_here()), os.environ)
            if remark is not None and not arguments.quiet:
                output.note(f"sandboxfs: {remark}")
            sandbox = sandbox or sandbox_around(Path(_here()), os.environ)
        workspace = _workspace(arguments) if sandbox is None else None
    return RunRequest(
        workspace=workspace,
        sandbox=sandbox,
        new=arguments.new,
        config=arguments.config,
        policy=policy_request(arguments, roots=True),
        confine=confinement_called(arguments.confine),
        network=arguments.network,
        home=home_called(arguments.home),
        variables=variables_of(arguments.env),
        clear_environment=arguments.clear_env,
        whole_environment=arguments.env_all,
        current=current_directory(),
    )


def assertions(arguments: Arguments) -> Assertions:
    """Say what *arguments* assert of the run."""
    return Assertions(
        tuple(arguments.assert_no_writes), tuple(arguments.assert_writes_only), arguments.assert_no_denials
    )


def _here() -> str:
    here = current_directory()
    if here is None:
        raise UsageError("the current directory is gone", hint="name one with --workspace DIR")
    return here


def _workspace(arguments: Arguments) -> str:
    """Choose the directory to work on, where none is named."""
    here = _here()
    if arguments.here:
        return here
    # Imported here: a run in a sandbox that is named does without.
    from sandboxfs.service.workspace import own_worktree, worktree

    if not arguments.toplevel:
        return str(own_worktree(Path(here), os.environ) or here)
    found = worktree(Path(here))
    if found is None:
        raise UsageError(f"--toplevel: {quoted(here)} is in no git work tree")
    return str(found)


# Programs with a sandbox of their own

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


# From the options to the end


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
