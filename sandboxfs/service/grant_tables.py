"""Tables to keep: the grants of a session as `[[grant]]` tables of the user's configuration.

They have the form in which `answer --during always` writes them, so that a person can keep an answer later.
What ends with its session is a comment that says why.
"""

from collections.abc import Iterator

from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.grants import Audience, Extent, Grant, KeptGrant, ProcessMark, Recipient, Wish
from sandboxfs.policy.model import Access, Mode, Rule, RuleCondition, RuleSource, SourceKind
from sandboxfs.service.questions import GrantsInForce, ShownGrant


def tables_to_keep(found: GrantsInForce) -> str:
    """Write *found* as TOML; empty without any grant that stays."""
    # A grant that is for once is over with its files.
    kept = [grant for grant in found.grants if grant.extent != "once"]
    return "\n".join("".join(f"{line}\n" for line in _table(grant, found)) for grant in kept)


def _table(grant: ShownGrant, found: GrantsInForce) -> Iterator[str]:
    yield f"# grant {grant.id}, asked by rule {quoted(str(grant.rule))} ({quoted(grant.rule.source)[1:-1]})"
    if grant.kept is not None:
        yield f"# kept already: {quoted(str(grant.kept))[1:-1]}"
    try:
        yield KeptGrant.of(_read(grant), str(found.record.workspace)).toml().removesuffix("\n")
    except UsageError as error:
        about = quoted(grant.path or ".")
        yield f"# {grant.decision} {grant.access} for {grant.extent} {about}: {error.message}"


def _read(grant: ShownGrant) -> Grant:
    """Return the grant that the daemon tells of."""
    needs = RuleCondition.IGNORED if grant.rule.ignored else RuleCondition.NOTHING
    source = RuleSource(SourceKind(grant.rule.kind), grant.rule.source)
    rule = Rule(grant.rule.pattern, Mode.ASK, source, needs=needs)
    recipient = Recipient(
        Audience(grant.who), grant.exe, None if grant.pid is None else ProcessMark(grant.pid, 0)
    )
    return Grant(
        grant.id,
        grant.decision == "allow",
        Wish(grant.access) if grant.access in tuple(Wish) else Access(grant.access),
        rule,
        Extent(grant.extent),
        grant.path,
        recipient,
        grant.remaining,
        grant.reason,
    )
