"""Which verb is meant, and how does it end?

The only place that turns errors into messages and exit codes. The module of a verb is imported when the
verb is asked for, so that none pays for the others.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from sandboxfs import __version__
from sandboxfs.cli import streams
from sandboxfs.errors import EXIT_BUG, EXIT_INTERRUPTED, SandboxError, UsageError

if TYPE_CHECKING:
    from sandboxfs.cli.parser import Parser

EXIT_BROKEN_PIPE = 141

VERBS = {
    "run": "run a program that cannot change the workspace, and show what it did",
    "shell": "the same with your shell",
    "mount": "serve a copy-on-write view of a workspace",
    "unmount": "end the serving; the changes stay",
    "list": "show all sandboxes",
    "status": "show one sandbox",
    "diff": "show what the sandbox changed",
    "commit": "apply changes to the workspace",
    "discard": "drop changes; the view shows the workspace again",
    "undo": "take back the last commit or discard",
    "rm": "remove sandboxes and the changes in them",
    "why": "explain whether a path may be used, and what would change that",
    "allow": "give one path another mode, for this session",
    "ro": "let nothing be changed that no rule names, for this session",
    "rw": "let everything be changed that no rule names, for this session",
    "enable": "enforce the rules again, for this session",
    "disable": "enforce no rules, for this session",
    "rules": "show the rules in force, and how often each decided",
    "export": "write the changes of a sandbox into one file",
    "import": "make a sandbox of an exported file",
    "gc": "give back the space of finished commits and discards",
    "log": "show what was asked of a sandbox, and what it was told",
    "config": "show, make or check the configuration",
    "doctor": "find out whether this machine can do it, and what would mend it",
}

# So many objects more than before, and it is looked for those that nobody needs.
_YOUNG = 100_000
_VERSION = f"sandboxfs {__version__}"


def command() -> NoReturn:
    """Be the command: run, and end at once. Taking an interpreter apart takes longer than some verbs."""
    # Most commands end before there is any garbage worth looking for.
    gc.set_threshold(_YOUNG)
    streams.set_up()
    status = main()
    # A program's own status, or that something failed, says more than that the last of the output is lost.
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = status or EXIT_BROKEN_PIPE
    except SandboxError as error:
        if status == 0:
            _say(error.as_text(as_json=False))
            status = error.exit_code
    try:
        sys.stderr.flush()
    finally:
        os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line *arguments* and return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Paths are bytes; those that are no text must come out as they are.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="surrogateescape")
    # What follows `--` is for the program that `run` starts.
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    try:
        return _run(words)
    except SandboxError as error:
        _say(error.as_text(as_json=as_json))
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
            import traceback

            with suppress(OSError):
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
    if words == ["--version"]:
        print(_VERSION)
        return 0
    try:
        _parser().parse_args(words)
    except SystemExit as ending:
        return int(ending.code or 0)
    raise UsageError("name a verb", hint="see 'sandboxfs --help'")


def _parser() -> "Parser":
    # Imported here: a verb has its own, and --version does without.
    from sandboxfs.cli.parser import Parser

    width = max(map(len, VERBS))
    lines = ["verbs:", *(f"  {verb.ljust(width)}  {summary}" for verb, summary in VERBS.items())]
    lines += ["", "'sandboxfs VERB --help' explains a verb, its options and its exit status."]
    description = "Let any program work on a directory without changing it until you say so."
    parser = Parser("sandboxfs", description, "\n".join(lines))
    parser.usage = "sandboxfs VERB [options] …"
    parser.add_argument("--version", action="version", version=_VERSION)
    return parser


def _report(code: str, status: int, message: str, *, as_json: bool) -> None:
    """Tell of an ending that is no `SandboxError`, in the same form."""
    if as_json:
        import json

        described = {"code": code, "exit": status, "message": message, "hint": None}
        _say(json.dumps({"error": described}))
    else:
        _say(f"sandboxfs: {message}")


def _say(text: str) -> None:
    # Nobody may be there to read it; the status tells as much.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)
