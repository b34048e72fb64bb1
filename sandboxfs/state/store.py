"""The store of sandboxes: finding, making and removing them; the record of each, `sandbox.toml`.

A sandbox is a directory below `sandboxes/`. A new sandbox appears under its name complete and locked, and a
removed one is first renamed to a hidden name, so that no crash leaves half a sandbox in a listing.

`sandbox.toml` holds one record. Its `format` is checked before anything else: a record of an unknown format,
with an unknown key or a wrong type is refused, never guessed at. Host paths need not be valid text; others
are written as `{ hex = "…" }`.

The policy is written as resolved when the sandbox was last mounted: every rule with its source, in order. The
built-in rules are not written: each version of sandboxfs brings its own.
"""

import os
import re
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeVar

import tomli_w

from sandboxfs.codec import APART, HEX, SPARSE, Form, Malformed, decode, encode, text_form
from sandboxfs.errors import NoSuchSandbox, SandboxBusy, SandboxError, UsageError
from sandboxfs.hostfs.identity import DirectoryIdentity
from sandboxfs.paths import make_directories, quoted, remove_directories
from sandboxfs.policy.ask_programs import AskedPrograms
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.config import ASK_TIMEOUT, AuditSettings, Symlinks
from sandboxfs.policy.model import Execute, Hold, Mode, Policy, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.state.disk import remove_tree
from sandboxfs.state.locations import Locations, SandboxPlaces
from sandboxfs.state.lock import SandboxLock

T = TypeVar("T")


def _text_out(text: str) -> str:
    """Text that TOML can hold: bytes that are no UTF-8 become a percent sign and two digits."""
    plain = text.replace("%", "%25")
    return "".join(f"%{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in plain)


def _text_in(text: str) -> str:
    first, *parts = text.split("%")
    out = [first]
    try:
        for part in parts:
            code = int(part[:2], 16)
            out.append((chr(code) if code < 0x80 else chr(0xDC00 + code)) + part[2:])
    except ValueError:
        raise Malformed("malformed text") from None
    return "".join(out)


_Text = Annotated[str, text_form(_text_out, _text_in)]


def _path_out(path: Path) -> object:
    text = str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"hex": os.fsencode(text).hex()}
    return text


def _path_in(found: object) -> Path:
    match found:
        case str():
            path = Path(found)
        case {"hex": digits, **others} if not others:
            path = Path(os.fsdecode(HEX.decode(digits)))
        case _:
            raise Malformed("expected a path")
    if not path.is_absolute() or "\0" in str(path):
        raise Malformed("expected an absolute path")
    return path


_HostPath = Annotated[Path, Form(_path_out, _path_in)]


def _time_in(found: object) -> datetime:
    if not isinstance(found, datetime):
        raise Malformed("expected a time")
    return found


@dataclass(frozen=True)
class PolicySettings:
    """The settings by which a session decides, asks and records: policy, symlinks, log, who is asked."""

    policy: Policy = field(default_factory=lambda: Policy(BUILT_IN))
    symlinks: Symlinks = Symlinks.GUARD
    audit: AuditSettings = field(default_factory=AuditSettings)
    ask_timeout: int = ASK_TIMEOUT
    asked_programs: AskedPrograms = field(default_factory=AskedPrograms)


@dataclass(frozen=True)
class PolicyOptions:
    """The policy options that a person gave when the sandbox was made; None or empty where none were given.

    *allows* are absolute paths in the workspace, each with a colon and a mode.
    """

    mode: _Text | None = field(default=None, metadata=SPARSE)
    preset: _Text | None = field(default=None, metadata=SPARSE)
    rules: tuple[_Text, ...] = field(default=(), metadata=SPARSE)
    allows: tuple[_Text, ...] = field(default=(), metadata=SPARSE)
    symlinks: _Text | None = field(default=None, metadata=SPARSE)
    config: _Text | None = field(default=None, metadata=SPARSE)
    read_only: bool = field(default=False, metadata=SPARSE)


FORMAT = 1


@dataclass(frozen=True)
class SandboxRecord:
    """A sandbox as it was last mounted: both paths are absolute and resolved."""

    name: str
    workspace: _HostPath
    mountpoint: _HostPath
    created: Annotated[datetime, Form(lambda time: time.astimezone(UTC), _time_in)]
    read_only: bool = False
    allow_other: bool = False
    # sandboxfs made the mountpoint itself and removes it again.
    own_mountpoint: bool = False
    # Of a companion: the sandbox beside which it serves one further place. And this sandbox's companions.
    companion_of: str | None = field(default=None, metadata=SPARSE)
    companions: tuple[str, ...] = field(default=(), metadata=SPARSE)
    # Files beside the workspace that programs of a run may read.
    readable: tuple[_HostPath, ...] = field(default=(), metadata=SPARSE)
    # Places inside the workspace that have a mount of their own in runs: this view does not show them.
    covered: tuple[_HostPath, ...] = field(default=(), metadata=SPARSE)
    # The user's configuration, where it is another file than the user's own.
    config: _HostPath | None = field(default=None, metadata=SPARSE)
    # The identity of the workspace; None in a record of a version that did not write identities.
    identity: DirectoryIdentity | None = field(default=None, metadata=SPARSE)
    settings: PolicySettings = field(default_factory=PolicySettings, metadata=APART)
    # The options hold at every later mount too, until a person replaces them.
    options: PolicyOptions = field(default_factory=PolicyOptions, metadata=SPARSE)

    @property
    def mode(self) -> str:
        return "ro" if self.read_only else self.settings.policy.mode.value


def dump_record(record: SandboxRecord) -> bytes:
    """Return *record* as the bytes of a `sandbox.toml`."""
    document = {"format": FORMAT} | encode(record) | dump_settings(record.settings)
    return tomli_w.dumps(document).encode()


def parse_record(content: bytes, source: str) -> SandboxRecord:
    """Parse the output of `dump_record`; raise `UsageError` naming *source* when *content* is malformed."""
    try:
        document = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{source}: malformed sandbox record: {error}") from error
    found = document.pop("format", None)
    if type(found) is not int or found != FORMAT:
        raise UsageError(
            f"{source}: unknown format {found!r}; this version of sandboxfs reads format {FORMAT}",
            hint="use the version of sandboxfs that made this sandbox",
        )
    settings = parse_settings(document, source)
    return replace(_read(SandboxRecord, document, source), settings=settings)


def _read(kind: type[T], document: object, source: str) -> T:
    try:
        return decode(kind, document)
    except Malformed as error:
        place, complaint = error.place, error.complaint
        where = f"{place!r} in sandbox record: {complaint}" if place else f"{complaint} in sandbox record"
        raise UsageError(f"{source}: {where}") from error


# The tables that hold the settings


@dataclass(frozen=True)
class _WrittenSource:
    kind: SourceKind
    file: _Text | None = field(default=None, metadata=SPARSE)
    line: int | None = field(default=None, metadata=SPARSE)


@dataclass(frozen=True)
class _WrittenRule:
    pattern: _Text
    mode: Mode
    place: _Text | None = field(default=None, metadata=SPARSE, kw_only=True)
    ignored: bool = field(default=False, metadata=SPARSE, kw_only=True)
    hold: tuple[Hold, ...] = field(default=(), metadata=SPARSE, kw_only=True)
    execute: Execute | None = field(default=None, metadata=SPARSE, kw_only=True)
    source: _WrittenSource


@dataclass(frozen=True)
class _WrittenPolicy:
    mode: Mode
    enabled: bool
    symlinks: Symlinks
    hold: tuple[Hold, ...] = field(default=(), metadata=SPARSE, kw_only=True)
    new_programs: Execute | None = field(default=None, metadata=SPARSE, kw_only=True)
    ask_timeout: int | None = field(default=None, metadata=SPARSE, kw_only=True)
    source: _WrittenSource
    rule: tuple[_WrittenRule, ...]


@dataclass(frozen=True)
class _WrittenAsked:
    command: tuple[_Text, ...] = field(default=(), metadata=SPARSE)
    url: _Text | None = field(default=None, metadata=SPARSE)
    token_file: _HostPath | None = field(default=None, metadata=SPARSE)


# A table of its own, because archives carry `policy`: who is asked is never for an archive to say.
@dataclass(frozen=True)
class _WrittenSettings:
    policy: _WrittenPolicy
    log: AuditSettings
    asked: _WrittenAsked = field(default_factory=_WrittenAsked, metadata=SPARSE)


def dump_settings(settings: PolicySettings) -> dict[str, object]:
    """The tables of a `sandbox.toml` that hold *settings*."""
    policy = settings.policy
    written = _WrittenPolicy(
        policy.mode,
        policy.enabled,
        settings.symlinks,
        _source_out(policy.mode_source),
        tuple(_rule_out(rule) for rule in policy.rules if rule.source.kind is not SourceKind.BUILT_IN),
        hold=_sorted(policy.hold),
        new_programs=None if policy.new_programs is Execute.ALLOW else policy.new_programs,
        ask_timeout=None if settings.ask_timeout == ASK_TIMEOUT else settings.ask_timeout,
    )
    programs = settings.asked_programs
    asked = _WrittenAsked(programs.command, programs.url, programs.token_file)
    return encode(_WrittenSettings(written, settings.audit, asked))


def parse_settings(document: dict[str, object], where: str) -> PolicySettings:
    """Take the tables that `dump_settings` wrote out of *document*; absent ones mean the defaults."""
    tables = {key: document.pop(key) for key in ("policy", "log", "asked") if key in document}
    if not tables:
        return PolicySettings()
    found = _read(_WrittenSettings, tables, where)
    policy = found.policy
    rules = (
        Rule(
            one.pattern,
            one.mode,
            _source_in(one.source),
            one.place,
            RuleCondition.IGNORED if one.ignored else RuleCondition.NOTHING,
            hold=frozenset(one.hold),
            execute=one.execute,
        )
        for one in policy.rule
    )
    resolved = Policy(
        (*rules, *BUILT_IN),
        policy.mode,
        policy.enabled,
        _source_in(policy.source),
        frozenset(policy.hold),
        policy.new_programs or Execute.ALLOW,
    )
    asked = AskedPrograms(found.asked.command, found.asked.url, found.asked.token_file)
    return PolicySettings(resolved, policy.symlinks, found.log, policy.ask_timeout or ASK_TIMEOUT, asked)


def _rule_out(rule: Rule) -> _WrittenRule:
    return _WrittenRule(
        rule.pattern,
        rule.mode,
        _source_out(rule.source),
        place=rule.place,
        ignored=rule.ignored,
        hold=_sorted(rule.hold),
        execute=rule.execute,
    )


def _sorted(hold: frozenset[Hold]) -> tuple[Hold, ...]:
    return tuple(kind for kind in Hold if kind in hold)


def _source_out(source: RuleSource) -> _WrittenSource:
    return _WrittenSource(source.kind, source.file, source.line)


def _source_in(source: _WrittenSource) -> RuleSource:
    return RuleSource(source.kind, source.file, source.line)


MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]{{0,{MAX_NAME - 1}}}")
# The first part of names for sandboxes being made, and for trials before that; both end with a process id.
_MAKING = (".new-", ".probe-")


def check_name(name: str) -> None:
    """Raise `UsageError` unless *name* may name a sandbox."""
    if not name:
        raise UsageError("the sandbox name is empty")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"bad sandbox name {quoted(name)}",
            hint=f"use up to {MAX_NAME} letters, digits, '.', '_' and '-', and no '.' or '-' at the start",
        )


def name_from(basename: str) -> str:
    """Make a valid sandbox name out of the last component of a workspace's path."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", basename).lstrip(".-")
    return safe[:MAX_NAME].rstrip("-") or "sandbox"


class Store:
    """The sandboxes of one state directory. Reading methods never create anything."""

    def __init__(self, locations: Locations) -> None:
        self.locations = locations

    def names(self) -> list[str]:
        """Return the names of all sandboxes, sorted, readable or not."""
        return [name for name in self._entries() if _NAME.fullmatch(name)]

    def places(self, name: str) -> SandboxPlaces:
        """Return where the sandbox called *name* is kept; a name with `..` or a slash leads elsewhere."""
        check_name(name)
        return self.locations.sandbox(name)

    def exists(self, name: str) -> bool:
        try:
            return self.places(name).home.is_dir()
        except OSError:
            return False

    def load(self, name: str) -> SandboxRecord:
        """Read the record of the sandbox called *name*."""
        check_name(name)
        path = self.places(name).record
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError) as error:
            if self.exists(name):
                raise UsageError(f"sandbox '{name}' has no record at {quoted(path)}") from error
            raise NoSuchSandbox(f"no sandbox called '{name}'", hint=self._known(name)) from error
        except OSError as error:
            raise UsageError(f"cannot read {quoted(path)}: {error.strerror}") from error
        record = parse_record(content, str(path))
        if record.name != name:
            raise UsageError(f"{path}: the record is of sandbox {record.name!r}")
        return record

    def readable(self) -> Iterator[SandboxRecord]:
        """Yield the record of every sandbox that can be read, sorted by name."""
        for name in self.names():
            try:
                yield self.load(name)
            except SandboxError:
                continue

    def free_name(self, wanted: str) -> str:
        """Return *wanted*, or *wanted* with the first of -2, -3, … that no sandbox has."""
        name, number = wanted, 1
        while os.path.lexists(self.places(name).home):
            number += 1
            suffix = f"-{number}"
            name = wanted[: MAX_NAME - len(suffix)] + suffix
        return name

    def create(self, record: SandboxRecord) -> SandboxLock:
        """Create the sandbox of *record*, locked by this process; the sandbox appears whole or not at all."""
        check_name(record.name)
        final = self.places(record.name)
        staged = SandboxPlaces(final.home.with_name(f".new-{record.name}-{os.getpid()}"))
        made = make_directories(staged.home)
        try:
            for directory in (staged.upper, staged.work, staged.index, staged.baseline):
                make_directories(directory)
            _write_whole(staged.record, dump_record(record))
            lock = SandboxLock.acquire(staged.lock)
            if lock is None:
                raise SandboxBusy(f"sandbox '{record.name}' is being created by another process")
            # Fails when the name was taken meanwhile: the directory of a sandbox is never empty.
            staged.home.rename(final.home)
        except OSError as error:
            remove_tree(staged.home)
            # Another process may have made a sandbox there meanwhile.
            remove_directories(made[1:])
            if final.home.exists():
                raise SandboxBusy(f"sandbox '{record.name}' is being created by another process") from error
            raise
        return lock

    def save(self, record: SandboxRecord) -> None:
        """Replace the record of an existing sandbox; the caller, or a daemon that asks for it, holds it."""
        _write_whole(self.places(record.name).record, dump_record(record))

    def remove(self, name: str) -> None:
        """Remove the sandbox called *name* with all its contents; the caller holds its lock."""
        hidden = self.locations.sandboxes / f".removed-{name}-{os.getpid()}"
        self.places(name).home.rename(hidden)
        remove_tree(hidden)

    def sweep(self) -> None:
        """Finish the removals, and undo the creations, that a crash interrupted."""
        for entry in self._entries():
            path = self.locations.sandboxes / entry
            if entry.startswith(".removed-") or (entry.startswith(_MAKING) and _is_abandoned(path)):
                remove_tree(path)

    def take_back(self, process: int) -> None:
        """Remove the unfinished sandboxes and the trial directories of a process that died."""
        for entry in self._entries():
            if entry.startswith(_MAKING) and entry.endswith(f"-{process}"):
                remove_tree(self.locations.sandboxes / entry)

    def _entries(self) -> list[str]:
        try:
            return sorted(path.name for path in self.locations.sandboxes.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            message = f"cannot read state directory {quoted(self.locations.sandboxes)}: {error.strerror}"
            raise UsageError(message, hint="choose another with SANDBOXFS_STATE_DIR") from error

    def _known(self, wanted: str) -> str | None:
        names = self.names()
        if not names:
            return None
        # Imported here: most names are typed correctly.
        import difflib

        near = difflib.get_close_matches(wanted, names, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        return f"{meant}there is {', '.join(names)}"


def load_family(store: Store, workspace: Path) -> None:
    """Raise unless every sandbox named after *workspace* can be read: the unreadable one may be meant."""
    family = re.compile(re.escape(name_from(workspace.name)) + r"(-\d+)?")
    for name in store.names():
        if family.fullmatch(name):
            store.load(name)


def _is_abandoned(path: Path) -> bool:
    # The creation of a sandbox never takes an hour.
    try:
        return time.time() - path.lstat().st_mtime > 3600
    except FileNotFoundError:
        # The sandbox was completed meanwhile.
        return False


def _write_whole(path: Path, content: bytes) -> None:
    staged = path.with_name(f".{path.name}.new")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            # A disk that is nearly full takes a part.
            while content:
                content = content[os.write(descriptor, content) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        staged.rename(path)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
