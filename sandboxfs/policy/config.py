"""Configuration files and policy options: what they ask for, as values.

The files are the user's own, and the project's `.sandboxfs.toml`, which is untrusted and holds rules only. A
missing file means the defaults. Any part that is not understood is refused, with the file, the line, the key
and the expected value: a sandbox never starts on a guessed policy.

In the text of a new configuration file (`TEMPLATE`) every setting is commented out, so that writing the file
changes nothing. Lines that start with `#` and no blank are settings; a test removes their marks and reads the
result.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.ask_programs import AskedPrograms, checked_url, command_words
from sandboxfs.policy.model import Access, Execute, Hold, Mode, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.policy.patterns import PatternError, parse
from sandboxfs.policy.toml import Problems, TomlTable, either, read_document

if TYPE_CHECKING:
    from sandboxfs.policy.grants import KeptGrant

PROJECT_FILE = ".sandboxfs.toml"
WORKSPACE_VARIABLE = "SANDBOXFS_WORKSPACE"

# Rules are cheap unless a file is written to make them costly, and a project's file may have been.
_PROJECT_RULES = 1000

ASK_TIMEOUT = 60
"""Seconds for which a question waits for a person."""

_ROOT_MODES = (Mode.RO.value, Mode.RW.value)
_MODES = tuple(mode.value for mode in Mode)
# The kinds of sources whose rules can ask again after the session.
_ASKING_KINDS = tuple(
    kind.value
    for kind in (SourceKind.COMMAND_LINE, SourceKind.PROJECT, SourceKind.USER, SourceKind.WORKSPACE)
)


class Symlinks(StrEnum):
    """The treatment of symlinks that lead out of the view."""

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
    """The level of the audit log, and its size on disk: *keep* files of *size* bytes each."""

    level: AuditLevel = AuditLevel.WRITES
    size: int = 16 * 1024 * 1024
    keep: int = 4


@dataclass(frozen=True)
class Allow:
    """A path to be allowed, inside the workspace or as another root. Not a pattern."""

    path: str
    mode: Mode
    source: RuleSource


@dataclass(frozen=True)
class PassedVariables:
    """Globs of environment variables for programs in workspaces at or below *workspace*, None for all."""

    workspace: Path | None
    names: tuple[str, ...]


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
    passed: tuple[PassedVariables, ...] = ()
    hold: frozenset[Hold] = frozenset()
    new_programs: Execute = Execute.ALLOW
    ask_timeout: int = ASK_TIMEOUT
    grants: tuple["KeptGrant", ...] = ()
    asked_programs: AskedPrograms = field(default_factory=AskedPrograms)
    mode_source: RuleSource = field(default=RuleSource(SourceKind.WORKSPACE), compare=False)

    def variables_for(self, workspace: Path) -> tuple[str, ...]:
        """Return the globs of the variables that programs get in *workspace*."""
        return tuple(
            name
            for one in self.passed
            if one.workspace is None or workspace.is_relative_to(one.workspace)
            for name in one.names
        )

    def overridden_by(self, environment: Mapping[str, str]) -> "UserConfig":
        """Return the configuration with the workspace that *environment* names, which is then `rw`."""
        given = environment.get(WORKSPACE_VARIABLE)
        if not given:
            return self
        source = RuleSource(SourceKind.WORKSPACE, WORKSPACE_VARIABLE)
        return replace(self, root=Path(given).expanduser(), mode=Mode.RW, mode_source=source)


def read_user_config(path: Path, problems: Problems | None = None) -> UserConfig:
    """Read the user's file at *path*; raise `UsageError` unless the file is missing or understood.

    With *problems*, each error is added there and its part of the file left out.
    """
    document = read_document(path, problems=problems)
    return UserConfig() if document is None else user_config(document)


def user_config(document: TomlTable) -> UserConfig:
    """Convert the document of a user's file."""
    document.only("workspace", "rule", "grant", "log", "environment", "execute", "ask")
    workspace = document.table("workspace")
    workspace.only("root", "mode", "enabled", "symlinks", "allow", "hold")
    execute = document.table("execute")
    execute.only("new")
    ask = document.table("ask")
    ask.only("timeout", "command", "url", "token_file")
    log = document.table("log")
    log.only("level", "size", "keep")
    defaults = AuditSettings()
    return UserConfig(
        root=_path(workspace, "root"),
        mode=workspace.choice("mode", Mode, _ROOT_MODES, Mode.RW),
        enabled=workspace.flag("enabled", True),
        symlinks=workspace.choice("symlinks", Symlinks, tuple(Symlinks), Symlinks.GUARD),
        allows=tuple(_allows(workspace)),
        rules=tuple(_rules(document, SourceKind.USER)),
        audit=AuditSettings(
            log.choice("level", AuditLevel, tuple(AuditLevel), defaults.level),
            log.number("size", defaults.size, least=64 * 1024),
            log.number("keep", defaults.keep, least=1),
        ),
        passed=tuple(_passed(document)),
        hold=_hold(workspace),
        new_programs=_execute(execute, "new") or Execute.ALLOW,
        ask_timeout=ask.number("timeout", ASK_TIMEOUT, least=1),
        grants=tuple(_grants(document)),
        asked_programs=AskedPrograms(_command(ask), _url(ask), _path(ask, "token_file")),
        mode_source=_mode_source(workspace),
    )


def read_project_rules(workspace: Path, problems: Problems | None = None) -> tuple[Rule, ...]:
    """Read the rules of the project in *workspace*; its file must be a regular one.

    With *problems*, each error is added there and its part of the file left out.
    """
    path = workspace / PROJECT_FILE
    try:
        # The path is untrusted: a symlink could lead anywhere, and opening a FIFO could block for ever.
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise UsageError(f"{PROJECT_FILE}: not a regular file")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise UsageError(f"cannot read configuration {quoted(path)}: {error.strerror}") from error
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    document = read_document(path, PROJECT_FILE, flags=flags, problems=problems)
    return () if document is None else project_rules(document)


def project_rules(document: TomlTable) -> tuple[Rule, ...]:
    """Convert the document of a project's file."""
    document.only("rule")
    rules = tuple(_rules(document, SourceKind.PROJECT))
    if len(rules) > _PROJECT_RULES:
        raise UsageError(f"{PROJECT_FILE}: more than {_PROJECT_RULES} rules")
    return rules


def _path(table: TomlTable, key: str) -> Path | None:
    value = table.text(key)
    if value is None:
        return None
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        table.refuse(key, f"no such user in {quoted(value)}")
        return None
    except ValueError:
        # A NUL in the name of a user.
        path = Path()
    if not path.is_absolute() or "\0" in value:
        table.refuse(key, f"expected an absolute path or one starting with '~', found {quoted(value)}")
    return path


def _command(ask: TomlTable) -> tuple[str, ...]:
    if ask.line("command") is None:
        return ()
    given = ask.words("command")
    try:
        words = () if given is None else command_words(given)
        if words and "/" in words[0]:
            program = Path(words[0]).expanduser()
            if not program.is_absolute():
                # The directory in which somebody mounts may be an untrusted project's.
                raise ValueError(
                    f"expected a program of the PATH or an absolute path, found {quoted(words[0])}"
                )
            words = (str(program), *words[1:])
    except (ValueError, RuntimeError) as error:
        ask.refuse("command", str(error))
        return ()
    return words


def _url(ask: TomlTable) -> str | None:
    url = ask.text("url")
    try:
        return None if url is None else checked_url(url)
    except ValueError as error:
        ask.refuse("url", str(error))
        return None


def _passed(document: TomlTable) -> Iterator[PassedVariables]:
    for table in document.tables("environment"):
        table.only("workspace", "pass")
        names = table.texts("pass")
        for name in names:
            if not name or "=" in name or "\0" in name:
                table.refuse("pass", f"expected names of variables or globs, found {quoted(name)}")
        yield PassedVariables(_path(table, "workspace"), names)


def _mode_source(workspace: TomlTable) -> RuleSource:
    line = workspace.line("mode")
    return (
        RuleSource(SourceKind.WORKSPACE)
        if line is None
        else RuleSource(SourceKind.WORKSPACE, workspace.file, line)
    )


def _rules(document: TomlTable, kind: SourceKind) -> Iterator[Rule]:
    for table in document.tables("rule"):
        table.only("path", "ignored", "mode", "hold", "execute")
        ignored = table.flag("ignored", False)
        # What is ignored may be meant wherever it is.
        pattern = "**" if ignored and table.line("path") is None else table.required("path")
        mode, hold, execute = _mode(table), _hold(table), _execute(table)
        if pattern is None:
            continue
        try:
            parse(pattern)
        except PatternError as error:
            table.refuse("path", str(error))
            continue
        needs = RuleCondition.IGNORED if ignored else RuleCondition.NOTHING
        yield Rule(pattern, mode, _source(table, kind), needs=needs, hold=hold, execute=execute)


def _grants(document: TomlTable) -> Iterator["KeptGrant"]:
    tables = list(document.tables("grant"))
    if not tables:
        return
    # Imported here: every command reads the configuration, and few have kept an answer.
    from sandboxfs.policy.grants import KEPT_EXTENTS, KEPT_KEYS, KeptGrant, target_problem

    for table in tables:
        table.only(
            "workspace", "rule", "source", "access", "decision", *KEPT_KEYS, "program", "reason", "ignored"
        )
        for key in ("workspace", "rule", "source", "access", "decision"):
            table.required(key)
        workspace, pattern, program = (
            _path(table, "workspace"),
            table.text("rule"),
            table.text("program"),
        )
        named = [key for key in KEPT_KEYS if table.line(key) is not None]
        if len(named) != 1:
            table.refuse(named[1] if named else KEPT_KEYS[0], f"expected one of {either(KEPT_KEYS)}")
        extent = KEPT_EXTENTS[KEPT_KEYS.index((named or KEPT_KEYS)[0])]
        target = None if len(named) != 1 else table.text(named[0])
        problem = None if target is None else target_problem(extent, target)
        if problem is not None:
            table.refuse(named[0], problem)
        if program is not None and not (program.startswith("/") and program.isprintable()):
            table.refuse("program", f"expected the absolute path of an executable, found {quoted(program)}")
        access = table.choice("access", Access, (Access.READ.value, Access.EXECUTE.value), Access.READ)
        allows = table.choice("decision", "allow".__eq__, ("allow", "deny"), False)
        kind = table.choice("source", SourceKind, _ASKING_KINDS, SourceKind.USER)
        if workspace is None or pattern is None or target is None or problem is not None:
            continue
        yield KeptGrant(
            str(workspace),
            pattern,
            kind,
            access,
            allows,
            extent,
            "" if target == "." else target,
            program,
            table.text("reason"),
            table.flag("ignored", False),
            source=_source(table, SourceKind.USER),
        )


def _hold(table: TomlTable) -> frozenset[Hold]:
    """Return the kinds of change that a rule holds."""
    if table.line("hold") is None:
        return frozenset()
    known = tuple(kind.value for kind in Hold)
    words = table.texts("hold")
    for word in words:
        if word not in known:
            table.refuse("hold", f"expected {either(known)}, found {quoted(word)}")
    return frozenset(Hold(word) for word in words if word in known)


def _execute(table: TomlTable, key: str = "execute") -> Execute | None:
    """Return what a rule says about executing; None where it says nothing of its own."""
    if table.line(key) is None:
        return None
    return table.choice(key, Execute, tuple(Execute), Execute.DENY)


def _allows(workspace: TomlTable) -> Iterator[Allow]:
    for table in workspace.tables("allow"):
        table.only("path", "mode")
        path, mode = table.required("path"), _mode(table, Mode.RW)
        if path is None:
            continue
        if not path or "\0" in path:
            table.refuse("path", f"expected a path, found {quoted(path)}")
        yield Allow(path, mode, _source(table, SourceKind.USER))


def _mode(table: TomlTable, default: Mode | None = None) -> Mode:
    word = table.text("mode") if default is not None else table.required("mode")
    if word is None:
        return default or Mode.RO
    return table.choice("mode", Mode, _MODES, Mode.RO)


def _source(table: TomlTable, kind: SourceKind) -> RuleSource:
    return RuleSource(kind, table.file, table.line())


@dataclass(frozen=True)
class PolicyRequest:
    """The policy options of a command line; None or empty for an absent option.

    *roots*: paths outside the workspace can be allowed. *shared*: the rules are for several workspaces, so a
    rule without a match in this one is no mistake. *more* are rules that come after all others but the
    built-in. *replace*: the options replace those that the sandbox was made with. *ask_command* and *ask_url*
    say who is asked in this session, and stand for what the configuration says about that.
    """

    mode: str | None = None
    preset: str | None = None
    rules: tuple[str, ...] = ()
    allows: tuple[str, ...] = ()
    symlinks: str | None = None
    log_level: str | None = None
    roots: bool = False
    shared: bool = False
    more: tuple[Rule, ...] = ()
    replace: bool = False
    ask_command: str | None = None
    ask_url: str | None = None


TEMPLATE = """\
# The configuration of sandboxfs. What is commented out is the default or an example.
# docs/policy.md explains modes, order and patterns; `sandboxfs config check` reads this file and says what is
# wrong with it.

#[workspace]

# The directory to work on when none is given.
#root = "~/projects/app"

# What paths that no rule names may be used for: "rw" (changes stay in the sandbox) or "ro".
#mode = "rw"

# `hold = ["delete", "overwrite"]` here holds such changes of what the workspace has.

# false: no rule is enforced. Changes stay in the sandbox all the same.
#enabled = true

# Links that lead out of the view: "guard" keeps those into system directories only, "keep" all, "deny" none.
#symlinks = "guard"

# Places to allow, by path: inside the workspace, or other directories to work on.
#[[workspace.allow]]
#path = "~/projects/app/generated"
#mode = "rw"

# Rules, by pattern. The first that matches decides, so exceptions come before what they are exceptions from.
#   hide   not listed, not found           ro   can be read and run, not changed
#   deny   listed, cannot be used          rw   can be changed, inside the sandbox
#   ask    a person is asked before it is read or executed; changes are held
#   hold   can be read and run; changes stay out of `commit` until a person approves them
# `hold = ["delete", "overwrite"]` beside a mode holds such changes of what the workspace has, and
# `execute = "ask"`, "deny" or "allow" says of executing what the mode does not.

# Example settings may be shown to the program, real ones may not: anywhere, and also when made later.
#[[rule]]
#path = "**/.env.example"
#mode = "ro"

#[[rule]]
#path = "**/.env*"
#mode = "hide"

#[[rule]]
#path = "*.pem"
#mode = "hide"

# What git ignores in the workspace, as its own ignore files and yours say: everywhere, or below a path.
#[[rule]]
#ignored = true
#mode = "ask"

# A path with a slash starts at the workspace; one with "/" or "~" in front is a place on this machine.
#[[rule]]
#path = "vendor/**"
#mode = "ro"

#[execute]

# Programs that the sandbox itself made or changed: "ask" a person once for each, "deny" or "allow" them.
#new = "allow"

# Answers that were kept, each for one workspace: 'sandboxfs answer ID allow --during always' writes them to
# the end of this file, and 'sandboxfs revoke' removes them.
#[[grant]]
#workspace = "~/projects/app"
#rule = "**/.env*"
#source = "user"
#access = "read"
#decision = "allow"
#path = ".env"
#program = "/usr/bin/make"

#[ask]

# How many seconds a program waits for a person before it is refused.
#timeout = 60

# A command that answers questions: it reads one as JSON, and writes its answer as JSON. No shell reads it.
#command = ["notify-ask", "--urgent"]

# A web address that answers them, and the file with the token that is sent there (`chmod 600`).
#url = "https://bot.example/ask"
#token_file = "~/.config/sandboxfs/token"

# Environment variables that programs of `sandboxfs run` get besides the harmless ones, by name or by glob, in
# workspaces at or below a directory, or everywhere.
#[[environment]]
#workspace = "~/projects/app"
#pass = ["DATABASE_URL", "MYAPP_*"]

#[log]

# What is written to the audit log: "denials", "writes" (every change and every denial) or "all" (reads too).
#level = "writes"

# A file of the log ends at this many bytes, and this many files are kept.
#size = 16777216
#keep = 4
"""
