"""Which options does `sandboxfs run` have, and what do they ask for?"""

import os
from pathlib import Path

from sandboxfs.cli.options import PolicyArguments, add_policy_options, policy_request
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.places import current_directory
from sandboxfs.cli.run_request import RunRequest
from sandboxfs.confine.choice import Confinement
from sandboxfs.confine.environment import parse_assignment
from sandboxfs.confine.home import Home
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted

EXIT_BROKEN = 1
EXIT_FAILED = 125
EXIT_CANNOT_EXECUTE = 126
EXIT_NOT_FOUND = 127

DESCRIPTION = """\
Run COMMAND in a copy-on-write view of the workspace, which is the current directory
unless said otherwise. COMMAND finds everything where it always is, cannot reach
anything else of yours, and has no network. What it changed is kept for review."""

EXAMPLES = [
    "sandboxfs run -- npm install",
    "sandboxfs run --home cow --network --env ANTHROPIC_API_KEY -- claude",
    "sandboxfs run --assert-writes-only 'build/**' -- make",
    "sandboxfs run -s app -- pytest",
]
ENDINGS = {
    0: "COMMAND's own status, whatever it is",
    EXIT_BROKEN: "what was asserted does not hold",
    EXIT_FAILED: "sandboxfs failed",
    EXIT_CANNOT_EXECUTE: "COMMAND cannot be executed",
    EXIT_NOT_FOUND: "COMMAND is not found",
}


class Arguments(PolicyArguments):
    command: list[str]
    workspace: str | None
    toplevel: bool
    sandbox: str | None
    new: bool
    confine: str
    network: bool
    home: str
    env: list[str]
    clear_env: bool
    assert_no_writes: list[str]
    assert_writes_only: list[str]
    assert_no_denials: bool
    commit: bool
    discard: bool
    review: bool
    quiet: bool
    json: str | None


def parser(verb: str = "run") -> Parser:
    if verb == "run":
        made = verb_parser(verb, DESCRIPTION, EXAMPLES, [], ENDINGS, passes_status=True)
        made.usage = "sandboxfs run [options] -- COMMAND [ARGUMENT …]"
    else:
        description = f"{DESCRIPTION}\nHere COMMAND is your shell."
        made = verb_parser(verb, description, ["sandboxfs shell --toplevel"], [], ENDINGS, passes_status=True)
    made.add_argument("command", nargs="*", metavar="COMMAND", help="the program and its arguments")
    where = made.add_argument_group("where")
    where.add_argument(
        "--workspace", metavar="DIR", help="the directory to work on; default: the current one"
    )
    where.add_argument(
        "--toplevel", action="store_true", help="the git work tree around the current directory"
    )
    where.add_argument("-s", "--sandbox", metavar="NAME", help="this sandbox; joins it when it is mounted")
    where.add_argument("--new", action="store_true", help="a new sandbox, also where one could be resumed")
    _add_confinement_options(made)
    add_policy_options(made, allow="allow a path, also outside the workspace; default: rw")
    _add_ending_options(made)
    return made


def _add_ending_options(made: Parser) -> None:
    held = made.add_argument_group(
        "asserting", "exit 1 and say what was written or refused, if it does not hold"
    )
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
        "--commit", action="store_true", help="apply the changes when COMMAND succeeded and all holds"
    )
    what.add_argument("--discard", action="store_true", help="drop the changes")
    what.add_argument("--review", action="store_true", help="ask what to do with the changes")
    end.add_argument("--quiet", action="store_true", help="say nothing unless something is wrong")
    end.add_argument("--json", metavar="FILE", help="write what happened to FILE")


def _add_confinement_options(made: Parser) -> None:
    kept = made.add_argument_group("confinement")
    kept.add_argument(
        "--confine",
        choices=[one.value for one in Confinement],
        default=Confinement.AUTO.value,
        help="what keeps COMMAND in; default: the strongest that this machine allows",
    )
    kept.add_argument("--network", action="store_true", help="let COMMAND use the network")
    kept.add_argument(
        "--home",
        choices=[one.value for one in Home],
        default=Home.PRIVATE.value,
        help="an empty home of the sandbox's own, yours copy-on-write without its secrets, or none",
    )
    kept.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass a variable on, whatever its name, or set it",
    )
    kept.add_argument("--clear-env", action="store_true", help="pass on only what every program needs")


def parse(words: list[str], verb: str) -> Arguments:
    """Read the command line of *verb*."""
    # Everything after the first `--` is the program's, whatever it looks like.
    ours, command = words, []
    if "--" in words:
        at = words.index("--")
        ours, command = words[:at], words[at + 1 :]
    arguments = parser(verb).parse_args(ours, namespace=Arguments())
    arguments.command += command
    if verb == "shell":
        if arguments.command:
            raise UsageError("'shell' takes no COMMAND", hint="use 'sandboxfs run -- COMMAND'")
        arguments.command = [os.environ.get("SHELL") or "/bin/sh"]
    if not arguments.command or not arguments.command[0]:
        raise UsageError("there is no COMMAND to run", hint="sandboxfs run [options] -- COMMAND …")
    return arguments


def request(arguments: Arguments) -> RunRequest:
    """Say what *arguments* ask for."""
    if arguments.sandbox is not None and arguments.new:
        raise UsageError("-s names a sandbox that is there, --new makes one: choose")
    if arguments.toplevel and (arguments.workspace is not None or arguments.sandbox is not None):
        raise UsageError("--toplevel is a workspace: leave --workspace and -s out")
    if arguments.json == "-":
        raise UsageError(
            "--json -: standard output is COMMAND's", hint="name a file; one that is called '-' is './-'"
        )
    workspace = arguments.workspace
    if workspace is None and arguments.sandbox is None:
        workspace = _toplevel() if arguments.toplevel else _here()
    return RunRequest(
        workspace=workspace,
        sandbox=arguments.sandbox,
        new=arguments.new,
        config=arguments.config,
        policy=policy_request(arguments, roots=True),
        confine=Confinement(arguments.confine),
        network=arguments.network,
        home=Home(arguments.home),
        variables=tuple(map(parse_assignment, arguments.env)),
        clear_environment=arguments.clear_env,
        writes_logged=bool(arguments.assert_no_writes or arguments.assert_writes_only),
    )


def _here() -> str:
    here = current_directory()
    if here is None:
        raise UsageError("the current directory is gone", hint="name one with --workspace DIR")
    return here


def _toplevel() -> str:
    """Find the git work tree around the current directory; git itself would read configuration there."""
    here = Path(_here())
    for place in (here, *here.parents):
        if os.path.lexists(place / ".git"):
            return str(place)
    raise UsageError(f"--toplevel: {quoted(here)} is in no git work tree")
