"""How are paths shown to a person, and made without leaving litter when a command fails later?

Nothing here follows a policy or knows a sandbox; everything works on plain host paths.
"""

import os
from pathlib import Path


def quoted(path: str | bytes | os.PathLike[str]) -> str:
    """Quote *path* for a message: on one line, with every odd character and undecodable byte visible."""
    shown = []
    for character in os.fsdecode(path):
        if "\udc80" <= character <= "\udcff":
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        elif character in "'\\":
            shown.append("\\" + character)
        elif character.isprintable():
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "'" + "".join(shown) + "'"


def nearest_existing(path: Path) -> Path:
    """Return *path*, or the closest of its ancestors that exists."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def make_directories(path: Path, mode: int = 0o700) -> list[Path]:
    """Make *path* and its missing ancestors with *mode*; return those made, innermost first.

    What is returned can be handed to `remove_directories` to take it all back.
    """
    missing = []
    while not path.is_dir() and path != path.parent:
        missing.append(path)
        path = path.parent
    made: list[Path] = []
    try:
        for directory in reversed(missing):
            try:
                directory.mkdir(mode)
            except FileExistsError:
                # Somebody else made it meanwhile, which is as good, unless it is no directory.
                if not directory.is_dir():
                    raise
            else:
                made.insert(0, directory)
    except OSError:
        remove_directories(made)
        raise
    return made


def remove_directories(made: list[Path]) -> None:
    """Remove the directories that `make_directories` made, as far as they are still empty."""
    for directory in made:
        try:
            directory.rmdir()
        except OSError:
            return
