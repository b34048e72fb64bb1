"""The user's settings of git: those of the system-wide and the global files, never a repository's.

The files are read here and not by git, so that no repository around the current directory is looked at.
`include.path` is followed; conditional includes are not, as their conditions are about a repository. Of a
setting that stands several times the last counts, as in git.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

_SYSTEM = "/etc/gitconfig"
_LARGEST = 1 << 20
_DEEPEST = 10


def user_setting(name: str, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the value of *name*, such as `core.pager`; None where it is not set or cannot be read."""
    environment = os.environ if environment is None else environment
    value = None
    for path in _files(environment):
        for key, text in _settings(path, environment):
            if key == name.lower():
                value = text
    return value


def user_excludes(environment: Mapping[str, str] | None = None) -> bytes:
    """Return the user's own ignore rules, for all repositories: `core.excludesFile`, or its default."""
    environment = os.environ if environment is None else environment
    named = user_setting("core.excludesFile", environment)
    path = _configuration(environment, "ignore") if named is None else _expanded(named, environment)
    if path is None or not path.is_absolute():
        return b""
    return _content(path) or b""


def _files(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("GIT_CONFIG_NOSYSTEM", "0").lower() in ("", "0", "no", "off", "false"):
        yield Path(environment.get("GIT_CONFIG_SYSTEM") or _SYSTEM)
    if "GIT_CONFIG_GLOBAL" in environment:
        yield Path(environment["GIT_CONFIG_GLOBAL"])
        return
    for path in (_configuration(environment, "config"), _expanded("~/.gitconfig", environment)):
        if path is not None:
            yield path


def _configuration(environment: Mapping[str, str], name: str) -> Path | None:
    base = environment.get("XDG_CONFIG_HOME") or "~/.config"
    return _expanded(f"{base}/git/{name}", environment)


def _expanded(path: str, environment: Mapping[str, str]) -> Path | None:
    if not path.startswith("~/"):
        return Path(path).expanduser() if path else None
    home = environment.get("HOME")
    return Path(home, path[2:]) if home else None


def _content(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return path.read_bytes()
    except (OSError, ValueError):
        return None


def _settings(path: Path, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The settings in the file at *path* and in what it includes, in order; up to the first mistake."""
    waiting = [(path, _parsed(path))]
    while waiting:
        here, settings = waiting[-1]
        found = next(settings, None)
        if found is None:
            waiting.pop()
            continue
        yield found
        included = _expanded(found[1], environment) if found[0] == "include.path" else None
        if included is not None and len(waiting) < _DEEPEST:
            waiting.append((here.parent / included, _parsed(here.parent / included)))


def _parsed(path: Path) -> Iterator[tuple[str, str]]:
    # Imported here: most verbs ask for no setting.
    from sandboxfs.review.git_files import parse_settings

    return parse_settings((_content(path) or b"").decode(errors="surrogateescape"))
