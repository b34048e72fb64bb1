"""How is a sandbox's policy written down?

As it was resolved when the sandbox was last mounted: every rule with where it came from, in order. The
built-in rules are not written: each version of sandboxfs brings its own.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from sandboxfs.errors import UsageError
from sandboxfs.policy.builtin import BUILT_IN
from sandboxfs.policy.config import AuditLevel, AuditSettings, Symlinks
from sandboxfs.policy.model import Kind, Mode, Policy, Rule, Source

T = TypeVar("T")
W = TypeVar("W", bound=Enum)


@dataclass(frozen=True)
class Settings:
    """What decides how a session serves."""

    policy: Policy = field(default_factory=lambda: Policy(BUILT_IN))
    symlinks: Symlinks = Symlinks.GUARD
    audit: AuditSettings = field(default_factory=AuditSettings)


def dump_settings(settings: Settings) -> dict[str, object]:
    """The tables of a `sandbox.toml` that hold *settings*."""
    policy = settings.policy
    return {
        "policy": {
            "mode": policy.mode.value,
            "enabled": policy.enabled,
            "symlinks": settings.symlinks.value,
            "source": _source_out(policy.mode_source),
            "rule": [_rule_out(rule) for rule in policy.rules if rule.source.kind is not Kind.BUILT_IN],
        },
        "log": {
            "level": settings.audit.level.value,
            "size": settings.audit.size,
            "keep": settings.audit.keep,
        },
    }


def parse_settings(document: dict[str, object], where: str) -> Settings:
    """Take the tables that `dump_settings` wrote out of *document*; absent ones mean the defaults."""
    if "policy" not in document and "log" not in document:
        return Settings()
    policy = _Fields(document.pop("policy", None), f"{where}: policy")
    log = _Fields(document.pop("log", None), f"{where}: log")
    rules = tuple(_rule_in(_Fields(rule, f"{where}: policy.rule")) for rule in policy.take("rule", list))
    settings = Settings(
        Policy(
            (*rules, *BUILT_IN),
            policy.word("mode", Mode),
            policy.take("enabled", bool),
            _source_in(_Fields(policy.take("source", dict), f"{where}: policy.source")),
        ),
        policy.word("symlinks", Symlinks),
        AuditSettings(log.word("level", AuditLevel), log.take("size", int), log.take("keep", int)),
    )
    policy.finish()
    log.finish()
    return settings


def _rule_out(rule: Rule) -> dict[str, object]:
    place = {} if rule.place is None else {"place": _text_out(rule.place)}
    return {
        "pattern": _text_out(rule.pattern),
        "mode": rule.mode.value,
        **place,
        "source": _source_out(rule.source),
    }


def _rule_in(fields: "_Fields") -> Rule:
    rule = Rule(
        fields.text("pattern"),
        fields.word("mode", Mode),
        _source_in(_Fields(fields.take("source", dict), fields.where)),
        place=fields.text("place") if fields.has("place") else None,
    )
    fields.finish()
    return rule


def _source_out(source: Source) -> dict[str, object]:
    out: dict[str, object] = {"kind": source.kind.value}
    if source.file is not None:
        out["file"] = _text_out(source.file)
    if source.line is not None:
        out["line"] = source.line
    return out


def _source_in(fields: "_Fields") -> Source:
    source = Source(
        fields.word("kind", Kind),
        fields.text("file") if fields.has("file") else None,
        fields.take("line", int) if fields.has("line") else None,
    )
    fields.finish()
    return source


def _text_out(text: str) -> str:
    """Text that TOML can hold: bytes that were none are written as a percent sign and two digits."""
    plain = text.replace("%", "%25")
    return "".join(f"%{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in plain)


def _text_in(text: str) -> str:
    first, *parts = text.split("%")
    out = [first]
    for part in parts:
        code = int(part[:2], 16)
        out.append((chr(code) if code < 0x80 else chr(0xDC00 + code)) + part[2:])
    return "".join(out)


class _Fields:
    """The keys of one table, each taken once and of its type."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, dict):
            raise UsageError(f"{where}: expected a table in sandbox record")
        self._table: dict[str, object] = dict(table)
        self.where = where

    def has(self, key: str) -> bool:
        return key in self._table

    def take(self, key: str, kind: type[T]) -> T:
        value = self._table.pop(key, None)
        if not isinstance(value, kind):
            raise UsageError(f"{self.where}: {key!r} in sandbox record: expected {kind.__name__}")
        return value

    def text(self, key: str) -> str:
        try:
            return _text_in(self.take(key, str))
        except ValueError as error:
            raise UsageError(f"{self.where}: {key!r} in sandbox record: malformed text") from error

    def word(self, key: str, kind: type[W]) -> W:
        try:
            return kind(self.take(key, str))
        except ValueError as error:
            raise UsageError(f"{self.where}: {key!r} in sandbox record: unknown word") from error

    def finish(self) -> None:
        if self._table:
            raise UsageError(f"{self.where}: unknown key {next(iter(self._table))!r} in sandbox record")
