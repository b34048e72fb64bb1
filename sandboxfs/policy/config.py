"""What do the configuration files ask for?

The user's file, and the project's own `.sandboxfs.toml`, which is untrusted and holds rules only. A missing
file means the defaults. Anything in one that is not understood is refused, naming the file, the line, the key
and what was expected: a sandbox never starts on a guessed policy.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.model import Kind, Mode, Rule, Source
from sandboxfs.policy.pattern import PatternError, parse
from sandboxfs.policy.reading import Table, read_document

PROJECT_FILE = ".sandboxfs.toml"
WORKSPACE_VARIABLE = "SANDBOXFS_WORKSPACE"

# Rules cost next to nothing unless they are made to, and a project's may have been.
_PROJECT_RULES = 1000

_ROOT_MODES = (Mode.RO.value, Mode.RW.value)
_MODES = tuple(mode.value for mode in Mode if mode is not Mode.ASK)


class Symlinks(StrEnum):
    """What becomes of links that lead out of the view."""

    GUARD = "guard"
    KEEP = "keep"
    DENY = "deny"


class AuditLevel(StrEnum):
    """Which decisions are written to the audit log."""

    DENIALS = "denials"
    WRITES = "writes"
    ALL = "all"


@dataclass(frozen=True)
class AuditSettings:
    """How much is logged, and how much of that is kept: *keep* files of *size* bytes each."""

    level: AuditLevel = AuditLevel.WRITES
    size: int = 16 * 1024 * 1024
    keep: int = 4


@dataclass(frozen=True)
class Allow:
    """A place to be allowed: a path inside the workspace, or another root. Not a pattern."""

    path: str
    mode: Mode
    source: Source


@dataclass(frozen=True)
class UserConfig:
    """The user's file as read: *root* is absolute, or None when the file names none."""

    root: Path | None = None
    mode: Mode = Mode.RW
    enabled: bool = True
    symlinks: Symlinks = Symlinks.GUARD
    allows: tuple[Allow, ...] = ()
    rules: tuple[Rule, ...] = ()
    audit: AuditSettings = AuditSettings()
    mode_source: Source = field(default=Source(Kind.WORKSPACE), compare=False)

    def overridden_by(self, environment: Mapping[str, str]) -> "UserConfig":
        """Return the configuration with the workspace that *environment* names, which is then `rw`."""
        given = environment.get(WORKSPACE_VARIABLE)
        if not given:
            return self
        source = Source(Kind.WORKSPACE, WORKSPACE_VARIABLE)
        return replace(self, root=Path(given).expanduser(), mode=Mode.RW, mode_source=source)


def read_user_config(path: Path) -> UserConfig:
    """Read the user's file at *path*; raise `UsageError` for all but a missing or understood one."""
    document = read_document(path)
    if document is None:
        return UserConfig()
    document.only("workspace", "rule", "log")
    workspace = document.table("workspace")
    workspace.only("root", "mode", "enabled", "symlinks", "allow")
    log = document.table("log")
    log.only("level", "size", "keep")
    defaults = AuditSettings()
    return UserConfig(
        root=_root(workspace),
        mode=workspace.choice("mode", Mode, _ROOT_MODES, Mode.RW),
        enabled=workspace.flag("enabled", True),
        symlinks=workspace.choice("symlinks", Symlinks, tuple(Symlinks), Symlinks.GUARD),
        allows=tuple(_allows(workspace)),
        rules=tuple(_rules(document, Kind.USER)),
        audit=AuditSettings(
            log.choice("level", AuditLevel, tuple(AuditLevel), defaults.level),
            log.number("size", defaults.size, least=64 * 1024),
            log.number("keep", defaults.keep, least=1),
        ),
        mode_source=_mode_source(workspace),
    )


def read_project_rules(workspace: Path) -> tuple[Rule, ...]:
    """Read the rules that the project in *workspace* brings along; its file must be a regular one."""
    path = workspace / PROJECT_FILE
    try:
        # Nobody vouches for what is there: a link could lead anywhere, opening a FIFO could take for ever.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UsageError(f"{PROJECT_FILE}: not a regular file")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UsageError(f"cannot read configuration {quoted(path)}: {error.strerror}") from error
    document = read_document(path, PROJECT_FILE, flags=os.O_NOFOLLOW | os.O_NONBLOCK)
    if document is None:
        return ()
    document.only("rule")
    rules = tuple(_rules(document, Kind.PROJECT))
    if len(rules) > _PROJECT_RULES:
        raise UsageError(f"{PROJECT_FILE}: more than {_PROJECT_RULES} rules")
    return rules


def _root(workspace: Table) -> Path | None:
    value = workspace.text("root")
    if value is None:
        return None
    try:
        root = Path(value).expanduser()
    except RuntimeError as error:
        raise workspace.complaint("root", f"no such user in {quoted(value)}") from error
    if not root.is_absolute() or "\0" in value:
        raise workspace.complaint(
            "root", f"expected an absolute path or one starting with '~', found {quoted(value)}"
        )
    return root


def _mode_source(workspace: Table) -> Source:
    line = workspace.line("mode")
    return Source(Kind.WORKSPACE) if line is None else Source(Kind.WORKSPACE, workspace.file, line)


def _rules(document: Table, kind: Kind) -> Iterator[Rule]:
    for table in document.tables("rule"):
        table.only("path", "mode")
        pattern = table.required("path")
        try:
            parse(pattern)
        except PatternError as error:
            raise table.complaint("path", str(error)) from error
        yield Rule(pattern, _mode(table), _source(table, kind))


def _allows(workspace: Table) -> Iterator[Allow]:
    for table in workspace.tables("allow"):
        table.only("path", "mode")
        path = table.required("path")
        if not path or "\0" in path:
            raise table.complaint("path", f"expected a path, found {quoted(path)}")
        yield Allow(path, _mode(table, Mode.RW), _source(table, Kind.USER))


def _mode(table: Table, default: Mode | None = None) -> Mode:
    if default is None:
        table.required("mode")
    if table.text("mode") == Mode.ASK:
        raise table.complaint("mode", "'ask' is not available yet")
    return table.choice("mode", Mode, _MODES, default or Mode.RW)


def _source(table: Table, kind: Kind) -> Source:
    return Source(kind, table.file, table.line())
