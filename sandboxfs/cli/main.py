"""Which verb is meant, and how does it end?

The only place that turns errors into messages and exit codes. The module of a verb is imported when the
verb is asked for, so that none pays for the others.
"""

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from sandboxfs import __version__
from sandboxfs.cli.parser import Parser
from sandboxfs.errors import EXIT_BUG, EXIT_INTERRUPTED, SandboxError, UsageError

EXIT_BROKEN_PIPE = 141

VERBS = {
    "mount": "serve a copy-on-write view of a workspace",
    "unmount": "end the serving; the changes stay",
    "list": "show all sandboxes",
    "status": "show one sandbox",
    "rm": "remove sandboxes and the changes in them",
    "why": "explain whether a path may be used, and what would change that",
    "allow": "give one path another mode, for this session",
    "ro": "let nothing be changed that no rule names, for this session",
    "rw": "let everything be changed that no rule names, for this session",
    "enable": "enforce the rules again, for this session",
    "disable": "enforce no rules, for this session",
    "rules": "show the rules in force, and how often each decided",
    "log": "show what was asked of a sandbox, and what it was told",
    "config": "show, make or check the configuration",
    "doctor": "find out whether this machine can do it, and what would mend it",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line *arguments* and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Paths are bytes; those that are no text must come out as they are.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")
    as_json = "--json" in words
    try:
        return _run(words)
    except SandboxError as error:
        print(error.as_text(as_json=as_json), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        _report("interrupted", EXIT_INTERRUPTED, "interrupted", as_json=as_json)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output has seen enough; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if not as_json:
            traceback.print_exception(error)
        _report("bug", EXIT_BUG, f"bug: {type(error).__name__}: {error}", as_json=as_json)
        return EXIT_BUG


def _run(words: list[str]) -> int:
    if words and words[0] in VERBS:
        module = importlib.import_module(f"sandboxfs.cli.{words[0]}")
        run: Callable[[list[str]], int] = module.run
        try:
            return run(words[1:])
        except SystemExit as ending:
            # argparse ends the process itself after --help.
            return int(ending.code or 0)
    if not words:
        _parser().print_help(sys.stderr)
        return UsageError.exit_code
    if not words[0].startswith("-"):
        raise UsageError(f"unknown verb '{words[0]}'", hint="see 'sandboxfs --help'")
    try:
        _parser().parse_args(words)
    except SystemExit as ending:
        return int(ending.code or 0)
    raise UsageError("name a verb", hint="see 'sandboxfs --help'")


def _parser() -> Parser:
    width = max(map(len, VERBS))
    lines = ["verbs:", *(f"  {verb.ljust(width)}  {summary}" for verb, summary in VERBS.items())]
    lines += ["", "'sandboxfs VERB --help' explains a verb, its options and its exit status."]
    description = "Let any program work on a directory without changing it until you say so."
    parser = Parser("sandboxfs", description, "\n".join(lines))
    parser.usage = "sandboxfs VERB [options] …"
    parser.add_argument("--version", action="version", version=f"sandboxfs {__version__}")
    return parser


def _report(code: str, status: int, message: str, *, as_json: bool) -> None:
    """Tell of an ending that is no `SandboxError`, in the same form."""
    if as_json:
        described = {"code": code, "exit": status, "message": message, "hint": None}
        print(json.dumps({"error": described}), file=sys.stderr)
    else:
        print(f"sandboxfs: {message}", file=sys.stderr)
