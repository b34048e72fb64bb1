"""What is wrong with a file of rules, all of it?

Reading stops at the first problem, as it must. To find the next one, what is wrong is blanked out, line by
line so that every line keeps its number, and the rest is read again.
"""

import re
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.policy.config import PROJECT_FILE, read_project_rules, read_user_config
from sandboxfs.policy.lines import key_lines

# Whoever has more has them from one mistake.
_MOST = 50


def is_project_file(path: Path) -> bool:
    """Tell whether *path* is a project's own file, which may hold rules only."""
    return path.name == PROJECT_FILE


def problems(path: Path) -> list[str]:
    """Return what is wrong with the file at *path*, a sentence each with file, line and key."""
    try:
        _read(path)
    except UsageError as error:
        try:
            lines = path.read_text().splitlines()
        except (OSError, ValueError):
            return [error.message]
        return _all_problems(path, lines, error.message)
    return []


def _read(path: Path) -> None:
    if is_project_file(path):
        read_project_rules(path.parent)
    else:
        read_user_config(path)


def _all_problems(path: Path, lines: list[str], first: str) -> list[str]:
    shown = PROJECT_FILE if is_project_file(path) else str(path)
    found: list[str] = []
    blanked: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        message: str | None = first
        while message is not None and len(found) < _MOST:
            place = re.match(re.escape(shown) + r":(\d+): '", message)
            if found and place is None:
                # Blanking out broke what was around it: that is ours to know.
                break
            # What is missing because it was blanked out has been told.
            if place is None or not (message.endswith(": missing") and _section(lines, place) & blanked):
                found.append(message)
            if place is None or not _blank(lines, int(place[1]), blanked):
                break
            copy.write_text("\n".join(lines))
            message = _complaint(lambda: _read(copy))
            message = None if message is None else message.replace(str(copy), str(path))
    return found


def _complaint(read: Callable[[], None]) -> str | None:
    try:
        read()
    except UsageError as error:
        return error.message
    return None


def _section(lines: list[str], place: re.Match[str]) -> set[int]:
    """Return the lines of the table that the line of *place* begins."""
    start = int(place[1])
    return set(range(start, _end(lines, start)))


def _end(lines: list[str], start: int) -> int:
    """Return the line after the key or the table that begins at *start*."""
    places = key_lines("\n".join(lines))
    if lines[start - 1].lstrip().startswith("["):
        following = (line for line in places.values() if lines[line - 1].lstrip().startswith("["))
    else:
        own = min((key for key, line in places.items() if line == start), key=len, default=())
        # The elements of an array may be on lines of their own.
        following = (line for key, line in places.items() if key[: len(own)] != own)
    return min((line for line in following if line > start), default=len(lines) + 1)


def _blank(lines: list[str], start: int, blanked: set[int]) -> bool:
    """Blank out what begins at line *start*; False when nothing was there."""
    try:
        end = _end(lines, start)
    except (ValueError, IndexError, tomllib.TOMLDecodeError):
        return False
    if not any(lines[start - 1 : end - 1]):
        return False
    blanked.update(range(start, end))
    lines[start - 1 : end - 1] = [""] * (end - start)
    return True
