"""How is a piece of text given to the person's editor?

As a file in a private directory that exists only meanwhile. The editor is the one that the person's
environment names, never one that a workspace asks for, and it works in that directory: neither a relative
PATH nor a configuration file where the person is can make it run something from a workspace.
"""

import os
import shlex
import signal
import subprocess
import tempfile
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sandboxfs.paths import make_directories, quoted
from sandboxfs.state.locations import Locations

_FALLBACK = "vi"


class EditorFailed(Exception):
    """The editor did not do its work; the message says why."""


def edit(text: bytes, name: str, terminal: int, environment: Mapping[str, str] = os.environ) -> bytes:
    """Return what the person made of *text*, in a file called *name*, with the editor on *terminal*."""
    named = environment.get("VISUAL") or environment.get("EDITOR") or _FALLBACK
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise EditorFailed(f"cannot understand the editor {quoted(named)}: {error}") from None
    with _private_directory(environment) as folder:
        file = folder / name
        try:
            file.write_bytes(text)
            _run([*words, str(file)], folder, terminal)
            return file.read_bytes()
        except OSError as error:
            raise EditorFailed(f"cannot give {quoted(file)} to the editor: {error.strerror}") from error


@contextmanager
def _private_directory(environment: Mapping[str, str]) -> Iterator[Path]:
    # Beside the sockets, not in TMPDIR, which may lie anywhere: the runtime directory is in no workspace.
    parent = Locations.from_environment(environment).runtime / "edit"
    try:
        make_directories(parent)
        made = tempfile.TemporaryDirectory(dir=parent, ignore_cleanup_errors=True)
    except OSError as error:
        raise EditorFailed(f"cannot make a file to edit in {quoted(parent)}: {error.strerror}") from error
    with made as folder:
        yield Path(folder)


def _run(command: list[str], folder: Path, terminal: int) -> None:
    attributes = termios.tcgetattr(terminal)
    try:
        with _signals_for_the_editor():
            ending = subprocess.run(
                command, cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, check=False
            )
    except OSError as error:
        raise EditorFailed(f"cannot run the editor {quoted(command[0])}: {error.strerror}") from error
    finally:
        # An editor that died may have left the terminal without echo or lines.
        termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)
    if ending.returncode < 0:
        name = signal.Signals(-ending.returncode).name
        raise EditorFailed(f"the editor {quoted(command[0])} was ended by {name}")
    if ending.returncode:
        raise EditorFailed(f"the editor {quoted(command[0])} ended with status {ending.returncode}")


@contextmanager
def _signals_for_the_editor() -> Iterator[None]:
    """Leave Ctrl-C and Ctrl-\\ to the editor, which may use them as keys."""

    def nothing(number: int, frame: FrameType | None) -> None:
        # Not SIG_IGN: that would be inherited by the editor.
        return

    before = {number: signal.signal(number, nothing) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
