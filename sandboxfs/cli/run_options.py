"""Options of `run`."""

import argparse
import os
from pathlib import Path

from sandboxfs.cli.parser import Parser, PolicyArguments, add_policy_options, policy_request, verb_parser
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.assertions import Assertions
from sandboxfs.service.run import CANNOT_EXECUTE, NOT_FOUND
from sandboxfs.service.run_views import (
    CONFINEMENTS,
    HOMES,
    RunRequest,
    confinement_called,
    home_called,
    variables_of,
)
from sandboxfs.service.select import sandbox_around
from sandboxfs.service.workspace import current_directory

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
            sandbox = sandbox_around(Path(_here()), os.environ)
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
