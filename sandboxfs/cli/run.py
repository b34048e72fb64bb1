"""`sandboxfs run` and `shell`: run a program that cannot change the workspace, and show what it did.

Its input, output, terminal, signals and exit status are passed through. The daemon is started first of all,
because it takes longest to begin; all else is imported meanwhile.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from sandboxfs.errors import EXIT_INTERRUPTED, SandboxError
from sandboxfs.service.prestart import WaitingDaemon, prestarted

if TYPE_CHECKING:
    from sandboxfs.cli.parser import Parser


def parser(verb: str = "run") -> "Parser":
    from sandboxfs.cli.run_command import parser as made

    return made(verb)


def run(words: list[str], verb: str = "run") -> int:
    with prestarted(needed=_needs_a_daemon(words, verb)) as waiting:
        return _reported(words, verb, waiting)


def _needs_a_daemon(words: list[str], verb: str) -> bool:
    """Guess from the look of *words*; a wrong guess costs time and nothing else."""
    for before, word in zip(["", *words], words, strict=False):
        if word == "--" or not (word.startswith("-") or before.startswith("-")):
            # The first word of the command, or what may be the value of an option before it.
            break
        # A sandbox that is named may be served already.
        if word.startswith(("-s", "--sandbox", "-h", "--help")):
            return False
    return bool(words or verb == "shell")


def _reported(words: list[str], verb: str, waiting: WaitingDaemon | None) -> int:
    """Run, and tell of whatever kept the program from running or us from knowing how it ended."""
    import signal

    from sandboxfs.cli.output import note
    from sandboxfs.cli.run_command import EXIT_FAILED, EndedBySignal, carry_out, end_by

    try:
        return carry_out(words, verb, waiting)
    except SandboxError as error:
        note(error.as_text(as_json=False))
    except KeyboardInterrupt:
        note("sandboxfs: interrupted")
        end_by(signal.SIGINT)
        return EXIT_INTERRUPTED
    except EndedBySignal as ending:
        return 128 + int(ending.args[0])
    except Exception as error:
        import traceback

        with suppress(OSError):
            traceback.print_exception(error)
        note(f"sandboxfs: bug: {type(error).__name__}: {error}")
    return EXIT_FAILED
