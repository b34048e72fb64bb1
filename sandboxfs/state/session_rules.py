"""Session rules: the rules that `allow` gave in a running session, kept for the reviews of that session.

A review asks no daemon; the daemon writes the rules down before they are in force, so that a change is held
even when the daemon is killed in the next moment. They are kept when the session ends: what its rules held
is held until the next one begins. From then on only rules of mode `hold` stay, so that no mount releases a
change that waits for a person; all others end with their session. No session is served under these rules.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sandboxfs.codec import Check, decode, encode
from sandboxfs.errors import UsageError
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.durable import write_whole
from sandboxfs.paths import quoted
from sandboxfs.policy.model import Mode, Rule, RuleSource, SourceKind

_NAME = "session-rules.json"
_VERSION = 1


def _understood(version: int) -> int:
    if version != _VERSION:
        raise ValueError(f"expected version {_VERSION}")
    return version


@dataclass(frozen=True)
class _SessionRule:
    # As bytes, because a pattern may name bytes that are not UTF-8.
    pattern: bytes
    mode: Mode


@dataclass(frozen=True)
class _SessionRules:
    version: Annotated[int, Check(_understood)]
    rules: tuple[_SessionRule, ...]


def read_session_rules(home: Path) -> tuple[Rule, ...]:
    """Return the rules in their order, none without a file; raise `UsageError` for a damaged file.

    Without these rules a change might not be held, so a damaged file stops a review.
    """
    try:
        content = (home / _NAME).read_bytes()
    except FileNotFoundError:
        return ()
    try:
        found: object = json.loads(content)
        written = decode(_SessionRules, found)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{quoted(home / _NAME)} is damaged: which changes 'sandboxfs allow' wanted held is not known",
            hint="remove the file to go on without these rules",
        ) from error
    source = RuleSource(SourceKind.RUNTIME)
    return tuple(
        Rule(one.pattern.decode(errors="surrogateescape"), one.mode, source) for one in written.rules
    )


def write_session_rules(home: Path, rules: Iterable[Rule]) -> None:
    """Replace the rules of the sandbox in *home* by the runtime ones among *rules*."""
    written = tuple(
        _SessionRule(rule.pattern.encode(errors="surrogateescape"), rule.mode)
        for rule in rules
        if rule.source.kind is SourceKind.RUNTIME
    )
    data = json.dumps(encode(_SessionRules(_VERSION, written)), separators=(",", ":")).encode()
    with HostDir.at(home) as directory:
        write_whole(directory, _NAME.encode(), data + b"\n")


def begin_session_rules(home: Path) -> tuple[Rule, ...]:
    """Keep only the rules that hold, as another session begins; return them."""
    found = read_session_rules(home)
    kept = tuple(rule for rule in found if rule.mode in (Mode.HOLD, Mode.ASK))
    if kept != found:
        write_session_rules(home, kept)
    return kept
