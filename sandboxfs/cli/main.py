"""The command: verbs, standard streams, and how errors become messages and exit codes.

A standard stream that was closed is as if it led nowhere. Its number is taken all the same: the next file to
be opened would get it, and what is printed would end up there.

Inside a run no verb works but `status`, which says which sandbox this is and what can be read of it there,
and `request`, which asks a person for more.
The variables that a run sets say where we are, and that /dev/fuse cannot be opened says that it is true: with
`--confine none` all verbs work. Up to there nothing is imported that needs other packages: inside, they may
be out of reach.

The only place that turns errors into messages and exit codes. The module of a verb is imported when the
verb is asked for, so that none pays for the others.
"""

import gc
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NoReturn, TextIO

from sandboxfs import __version__
from sandboxfs.errors import EXIT_BUG, EXIT_INTERRUPTED, SandboxError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from sandboxfs.cli.parser import Parser


class _Output(io.FileIO):
    """Standard output. That it cannot be written is nobody's bug; that nobody reads it is told elsewhere."""

    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise UsageError(f"cannot write the output: {error.strerror}") from error


def set_up() -> None:
    """Make all three usable."""
    # The wrong way round, so that whoever inherits one fails to use it, as if it were closed.
    for number, way in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)
    sys.stdin = sys.stdin or _nowhere("r")
    sys.stderr = sys.stderr or _nowhere("w")
    if sys.stdout is None:
        sys.stdout = _nowhere("w")
    else:
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_Output(1, "wb", closefd=False)),
            encoding=sys.stdout.encoding,
            line_buffering=sys.stdout.isatty(),
        )


def _nowhere(mode: Literal["r", "w"]) -> TextIO:
    return open(os.devnull, mode)  # noqa: PTH123 - this is no path of anybody's


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
    "approve": "list held changes, and let commit take them",
    "reject": "drop held changes",
    "undo": "take back the last commit or discard",
    "rm": "remove sandboxes and the changes in them",
    "prune": "remove the sandboxes that hold nothing",
    "why": "explain whether a path may be used, and what would change that",
    "allow": "give one path another mode, for this session",
    "ro": "let nothing be changed that no rule names, for this session",
    "rw": "let everything be changed that no rule names, for this session",
    "enable": "enforce the rules again, for this session",
    "disable": "enforce no rules, for this session",
    "rules": "show the rules in force, and how often each decided",
    "asks": "show what programs wait for, or be asked about it",
    "answer": "let a program that waits go on, or refuse it",
    "grants": "show what answers allowed or refused, and still do",
    "revoke": "take back what an answer allowed or refused",
    "request": "ask, from inside a run, for a directory that is not there",
    "export": "write the changes of a sandbox into one file",
    "import": "make a sandbox of an exported file",
    "gc": "give back the space of finished commits and discards",
    "log": "show what was asked of a sandbox, and what it was told",
    "config": "show, make or check the configuration",
    "doctor": "find out whether this machine can do it, and what would mend it",
}

# The modules that carry out several verbs, and are told which is meant. Every other verb has one of its name.
_SHARED = {
    "allow": "policy",
    "ro": "policy",
    "rw": "policy",
    "enable": "policy",
    "disable": "policy",
    "rules": "policy",
    "why": "policy",
    "prune": "rm",
    "mount": "mount",
    "unmount": "mount",
    "list": "list",
    "status": "list",
    "export": "export",
    "import": "export",
    "shell": "run",
    "approve": "approve",
    "reject": "approve",
    "asks": "asks",
    "answer": "asks",
    "grants": "asks",
    "revoke": "asks",
}

# What people type who know it from elsewhere.
_OTHER_NAMES = {"ls": "list", "umount": "unmount"}

# So many objects more than before, and it is looked for those that nobody needs.
_YOUNG = 100_000
_VERSION = f"sandboxfs {__version__}"


def command() -> NoReturn:
    """Be the command: run, and end at once. Taking an interpreter apart takes longer than some verbs."""
    # Most commands end before there is any garbage worth looking for.
    gc.set_threshold(_YOUNG)
    set_up()
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
    # `run` and `shell` tell of their own failures, and their `--json` names a file.
    as_json = words[:1] not in (["run"], ["shell"]) and "--json" in (
        words[: words.index("--")] if "--" in words else words
    )
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
        from sandboxfs.service.review_session import disk_error, is_disk_error

        if isinstance(error, OSError) and is_disk_error(error):
            told = disk_error("cannot go on", error, os.environ)
            _say(told.as_text(as_json=as_json))
            return told.exit_code
        if not as_json:
            import traceback

            with suppress(OSError):
                traceback.print_exception(error)
        _report("bug", EXIT_BUG, f"bug: {type(error).__name__}: {error}", as_json=as_json)
        return EXIT_BUG


def _run(words: list[str]) -> int:
    words = _plain(words)
    if words and words[0] in VERBS and not {"-h", "--help"} & set(words) and _is_inside():
        return _answer_inside(words)
    if words and words[0] in VERBS:
        try:
            return _carry_out(words[0], words[1:])
        except SystemExit as ending:
            # argparse ends the process itself after --help.
            return int(ending.code or 0)
    if not words:
        _parser().print_help(sys.stderr)
        return UsageError.exit_code
    if not words[0].startswith("-"):
        raise _unknown(words[0])
    if words in (["--version"], ["-V"]):
        print(_VERSION)
        return 0
    try:
        _parser().parse_args(words)
    except SystemExit as ending:
        return int(ending.code or 0)
    except UsageError as error:
        error.hint = _after_its_verb(words) or error.hint
        raise
    raise UsageError("name a verb", hint="see 'sandboxfs --help'")


def _unknown(word: str) -> UsageError:
    from sandboxfs.cli.output import nearest

    near = nearest(word, [*VERBS, *_OTHER_NAMES, "help"])
    meant = "" if near is None else f"did you mean '{near}'? "
    return UsageError(f"unknown verb '{word}'", hint=f"{meant}see 'sandboxfs --help'")


def _after_its_verb(words: list[str]) -> str | None:
    """Say that the option with which *words* begin goes after the verb, if it is one of that verb."""
    for word in words:
        verb = _OTHER_NAMES.get(word, word)
        if verb in VERBS:
            option = words[0].partition("=")[0]
            known = parser_of(verb).has_option(option)
            return f"{option} goes after the verb: sandboxfs {word} {option} …" if known else None
    return None


def module_of(verb: str) -> ModuleType:
    """Import the module that carries out *verb*."""
    return importlib.import_module(f"sandboxfs.cli.{_SHARED.get(verb, verb)}")


def parser_of(verb: str) -> "Parser":
    """Return the parser of *verb*."""
    make: Callable[..., Parser] = module_of(verb).parser
    return make(verb) if verb in _SHARED else make()


def _carry_out(verb: str, words: list[str]) -> int:
    run: Callable[..., int] = module_of(verb).run
    return run(words, verb) if verb in _SHARED else run(words)


def _plain(words: list[str]) -> list[str]:
    """Turn `help VERB` into `VERB --help`, and other names of verbs into their own."""
    if words[:1] == ["help"]:
        words = [*(word for word in words[1:2] if word != "help"), "--help"]
    return [_OTHER_NAMES.get(words[0], words[0]), *words[1:]] if words else []


def _parser() -> "Parser":
    # Imported here: a verb has its own, and --version does without.
    from sandboxfs.cli.parser import Parser

    width = max(map(len, VERBS))
    lines = ["verbs:", *(f"  {verb.ljust(width)}  {summary}" for verb, summary in VERBS.items())]
    lines += ["", "'sandboxfs help VERB' explains a verb, its options and its exit status."]
    description = "Let any program work on a directory without changing it until you say so."
    parser = Parser("sandboxfs", description, "\n".join(lines))
    parser.usage = "sandboxfs VERB [options] …"
    parser.add_argument("-V", "--version", action="version", version=_VERSION)
    return parser


def _report(code: str, status: int, message: str, *, as_json: bool) -> None:
    """Tell of an ending that is no `SandboxError`, in the same form."""
    if as_json:
        from sandboxfs.codec import document

        described = {"code": code, "exit": status, "message": message, "hint": None}
        _say(document({"error": described}, indent=None))
    else:
        _say(f"sandboxfs: {message}")


def _say(text: str) -> None:
    # Nobody may be there to read it; the status tells as much.
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


# Inside a run

_FILES = {
    "changes": "what has changed so far",
    "denials": "what was refused",
    "policy": "the rules in force",
}
_EXIT_FAILED = 125


def _is_inside() -> bool:
    """Say whether this process is confined by a run."""
    if os.environ.get("SANDBOXFS") != "1":
        return False
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return True
    return False


def _answer_inside(words: list[str]) -> int:
    """Carry out a verb inside a run: `status` tells of the sandbox, all others are refused."""
    name = os.environ.get("SANDBOXFS_SANDBOX", "")
    if words[0] == "request":
        return _carry_out(words[0], words[1:])
    if words[0] != "status":
        refusal = UsageError(
            f"you are inside sandbox '{name}', where 'sandboxfs {words[0]}' cannot work",
            hint="'sandboxfs status' says what can be read here, 'sandboxfs request' asks for a directory; "
            "all else is done outside",
        )
        if words[0] in ("run", "shell"):
            print(refusal.as_text(as_json=False), file=sys.stderr)
            return _EXIT_FAILED
        raise refusal
    network = "SANDBOXFS_NETWORK_DISABLED" not in os.environ
    files = _files_inside()
    if "--json" in words:
        from sandboxfs.codec import document

        print(document({"inside": name, "network": network, "files": files}))
        return 0
    print(f"you are inside sandbox '{name}'; the network is {'on' if network else 'off'}")
    for word, path in files.items():
        print(f"{path}: {_FILES[word]}")
    if not files:
        print("the top directory of the workspace has, in .sandboxfs/: " + ", ".join(_FILES))
    return 0


def _files_inside() -> dict[str, str]:
    """Where the view around the current directory has what can be read of the sandbox."""
    from pathlib import Path

    try:
        here = Path.cwd()
    except OSError:
        return {}
    for top in (here, *here.parents):
        if os.path.exists(top / ".sandboxfs/policy"):  # noqa: PTH110 - never raises
            return {word: str(top / ".sandboxfs" / word) for word in _FILES}
    return {}
