"""The configuration: the policy that a mount would have, the file it is read from, and what is wrong there.

No file that exists is ever written. A file of rules is checked to its end: all that is wrong with it is told,
a sentence each with file, line and key. TOML that is malformed ends its reading; the rest is checked without
the malformed line, or without the table whose header is malformed, and every line keeps its number.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import make_directories, quoted
from sandboxfs.policy.config import (
    ASK_TIMEOUT,
    PROJECT_FILE,
    TEMPLATE,
    WORKSPACE_VARIABLE,
    PolicyRequest,
    UserConfig,
    project_rules,
    read_project_rules,
    read_user_config,
    user_config,
)
from sandboxfs.policy.explain import described_rule
from sandboxfs.policy.sources import can_match_in, effective_toml
from sandboxfs.policy.toml import Problems, parse_document
from sandboxfs.service.events import CallerContext
from sandboxfs.service.resolve_policy import read_config, resolve
from sandboxfs.service.responder import asked_as_json
from sandboxfs.service.select import SANDBOX_VARIABLE
from sandboxfs.service.workspace import user_path
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import PolicySettings, Store


def configuration_file(named: str | None, caller: CallerContext) -> Path:
    """Return the path of the file *named*, or of the user's own configuration; it need not exist."""
    own = Locations.from_environment(caller.environment).config
    return own if named is None else user_path(named, caller.directory)


def make_configuration(path: Path) -> None:
    """Write a commented configuration file at *path*, where there must be nothing."""
    if os.path.lexists(path):
        raise UsageError(f"{quoted(path)} exists already", hint="edit it, or name another file with --config")
    try:
        make_directories(path.parent)
        # Exclusive: what a person wrote is never overwritten, nor a link followed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(TEMPLATE)
    except OSError as error:
        raise UsageError(f"cannot write {quoted(path)}: {error.strerror}") from error


@dataclass(frozen=True)
class ConfigurationCheck:
    """What is wrong with a configuration file, and what reads well and may still not be meant.

    Where the file does not *exist*, the defaults apply, and nothing is wrong with them.
    """

    path: Path
    exists: bool
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "path": str(self.path),
            "exists": self.exists,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
        }


def check_configuration(named: str | None, caller: CallerContext) -> ConfigurationCheck:
    """Read the file *named*, which must exist, or the user's own configuration."""
    path = configuration_file(named, caller)
    if not os.path.lexists(path):
        if named is not None:
            raise UsageError(f"cannot read configuration {quoted(path)}: no such file")
        return ConfigurationCheck(path, exists=False)
    found = tuple(problems(path))
    return ConfigurationCheck(path, True, found, () if found else _warnings(path, caller))


def _warnings(path: Path, caller: CallerContext) -> tuple[str, ...]:
    """What reads well and may still not be meant, for the workspace that the file is about."""
    if is_project_file(path):
        return resolve(path.parent.resolve(), None, UserConfig(), PolicyRequest(), {}).warnings
    config = read_user_config(path)
    workspace = config.root or Path(caller.directory or "/")
    return resolve(workspace, None, config, PolicyRequest(), {}).warnings


@dataclass(frozen=True)
class EffectivePolicy:
    """The policy that a mount of *workspace* would have."""

    workspace: Path
    settings: PolicySettings
    warnings: tuple[str, ...]

    @property
    def rules_toml(self) -> str:
        """The rules in the order in which they are asked, as a configuration file would have them."""
        return effective_toml(self.settings.policy, str(self.workspace))

    @property
    def ask(self) -> dict[str, object]:
        """What is asked beside persons, and for how long, as far as it is not the default."""
        asked = asked_as_json(self.settings.asked_programs)
        said: dict[str, object] = {key: value for key, value in asked.items() if value is not None}
        timeout = self.settings.ask_timeout
        return said if timeout == ASK_TIMEOUT else {"timeout": timeout} | said

    @property
    def ask_toml(self) -> str:
        """The same, as a configuration file would have it."""
        import tomli_w

        return tomli_w.dumps({"ask": self.ask})

    def as_json(self) -> dict[str, object]:
        policy, audit = self.settings.policy, self.settings.audit
        return {
            "workspace": str(self.workspace),
            "mode": policy.mode.value,
            "mode_source": str(policy.mode_source),
            "enabled": policy.enabled,
            "symlinks": self.settings.symlinks.value,
            "log": {"level": audit.level.value, "size": audit.size, "keep": audit.keep},
            "rules": [
                described_rule(rule) | {"in_workspace": can_match_in(rule, str(self.workspace))}
                for rule in (*policy.rules, policy.root_rule)
            ],
            "warnings": list(self.warnings),
        } | ({"ask": self.ask} if self.ask else {})


def effective_policy(
    workspace: str | None, sandbox: str | None, config: str | None, caller: CallerContext
) -> EffectivePolicy:
    """Return the policy that the next mount would have.

    It is about the directory *workspace*, or the workspace of *sandbox*, else the one that is around the
    caller or that the environment or the configuration names. The file *config* stands for the user's own.
    """
    locations = Locations.from_environment(caller.environment)
    read = read_config(locations.config, config, caller.directory)
    chosen, environment = _workspace(workspace, sandbox, read, locations, caller)
    resolved = resolve(chosen, None, read, PolicyRequest(), environment)
    return EffectivePolicy(chosen, resolved.settings, resolved.warnings)


def _workspace(
    given: str | None, sandbox: str | None, config: UserConfig, locations: Locations, caller: CallerContext
) -> tuple[Path, Mapping[str, str]]:
    """Choose the workspace, and return it with the environment if that chose it."""
    if given is not None:
        if sandbox is not None:
            raise UsageError("name either a workspace or a sandbox, not both")
        return _directory(given, caller), {}
    store = Store(locations)
    named = sandbox or caller.environment.get(SANDBOX_VARIABLE)
    if named:
        return store.load(named).workspace, {}
    around = _around(store, caller.directory)
    if around is not None:
        return around, {}
    from_environment = caller.environment.get(WORKSPACE_VARIABLE)
    if from_environment:
        return _directory(from_environment, caller), caller.environment
    if config.root is not None:
        return MountTable.read().resolve(config.root), {}
    return _directory(caller.directory or "/", caller), {}


def _around(store: Store, current: str | None) -> Path | None:
    """Return the workspace of the sandbox whose workspace or view most closely holds *current*."""
    if current is None:
        return None
    held = {
        place: record.workspace
        for record in store.readable()
        if record.companion_of is None
        for place in (record.workspace, record.mountpoint)
        if Path(current).is_relative_to(place)
    }
    return held[max(held, key=lambda place: len(place.parts))] if held else None


def _directory(given: str, caller: CallerContext) -> Path:
    if not given:
        raise UsageError("the workspace is empty")
    try:
        path = MountTable.read().resolve(user_path(given, caller.directory))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use workspace {quoted(given)}: {error}") from error
    if not path.is_dir():
        raise UsageError(f"cannot use workspace {quoted(path)}: no such directory")
    return path


# Whoever has more has them from one mistake.
_MOST = 50


def is_project_file(path: Path) -> bool:
    """Tell whether *path* is a project's own file, which may hold rules only."""
    return path.name == PROJECT_FILE


def problems(path: Path) -> list[str]:
    """Return what is wrong with the file at *path*, in the order of its lines."""
    found: Problems = []
    try:
        if is_project_file(path):
            read_project_rules(path.parent, found)
        else:
            read_user_config(path, found)
    except UsageError as error:
        found += [error.message, *_others(path, error.message)]
    name = _name(path)
    return sorted(found, key=lambda message: _line(name, message) or 0)[:_MOST]


def _name(path: Path) -> str:
    return PROJECT_FILE if is_project_file(path) else str(path)


def _line(name: str, message: str, what: str = "") -> int | None:
    place = re.match(re.escape(name) + r":(\d+): " + what, message)
    return None if place is None else int(place[1])


def _others(path: Path, complaint: str) -> Problems:
    """Return what else is wrong with a file, of which *complaint* says that its TOML is malformed."""
    name = _name(path)
    try:
        lines = path.read_text().replace("\r\n", "\n").split("\n")
    except (OSError, ValueError):
        return []
    found: Problems = []
    while len(found) < _MOST:
        line = _line(name, complaint, "malformed TOML")
        if line is None or not _blank(lines, line):
            return found
        more: Problems = []
        try:
            document = parse_document(name, "\n".join(lines).encode(), more)
            project_rules(document) if is_project_file(path) else user_config(document)
        except UsageError as error:
            complaint = error.message
            found.append(complaint)
            continue
        # What is missing may be what was blanked out.
        return found + [problem for problem in more if not problem.endswith(": missing")]
    return found


def _blank(lines: list[str], number: int) -> bool:
    """Blank out line *number*, with its table where it is a header; False when nothing was there."""
    start = end = number - 1
    if start >= len(lines) or not lines[start].strip():
        return False
    is_header = lines[start].lstrip().startswith("[")
    end += 1
    while is_header and end < len(lines) and not lines[end].lstrip().startswith("["):
        end += 1
    lines[start:end] = [""] * (end - start)
    return True
