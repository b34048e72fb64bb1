"""Rules to keep: what grants of a session come to as `[[rule]]` tables of the user's configuration.

A rule names the place on the host, so that it is about this workspace alone. What a rule would allow beyond
the grant is written as a comment, with the reason: a rule is for anybody, without end, and about all that it
matches, while a grant is only about what its own rule asks about.
"""

from collections.abc import Iterator
from pathlib import Path

from sandboxfs.paths import quoted
from sandboxfs.policy.patterns import escape
from sandboxfs.service.questions import AskingRule, GrantsInForce, ShownGrant

# Rules of these kinds are asked before those of the user's configuration.
_BEFORE = ("runtime", "command line", "project")


def rules_to_keep(found: GrantsInForce) -> str:
    """Write *found* as TOML; empty without any grant that stays."""
    # A grant that is for once is over with its files.
    kept = [grant for grant in found.grants if grant.extent != "once"]
    return "\n".join("".join(f"{line}\n" for line in _table(grant, found.record.workspace)) for grant in kept)


def _table(grant: ShownGrant, workspace: Path) -> Iterator[str]:
    about = quoted(grant.path or ".")
    yield f"# grant {grant.id}: {grant.decision} {grant.access} for {grant.extent} {about}"
    yield f"# asked by rule {quoted(str(grant.rule))} ({grant.rule.source})"
    if grant.rule.kind in _BEFORE:
        yield "# that rule is asked before your configuration: it has to go, or this be given with --rule"
    pattern = _pattern(grant, workspace)
    if pattern is None:
        yield "# no rule can say this: it is about a content"
        return
    beyond = _beyond(grant)
    for reason in beyond:
        yield f"# {reason}"
    # Imported here: nothing else of these verbs writes TOML.
    import tomli_w

    table = tomli_w.dumps({"path": pattern, **_meaning(grant)})
    mark = "# " if beyond else ""
    yield from (f"{mark}{line}" for line in ("[[rule]]", *table.splitlines()))


def _pattern(grant: ShownGrant, workspace: Path) -> str | None:
    top = "" if workspace == Path("/") else escape(str(workspace))
    match grant.extent:
        case "path":
            return f"{top}/{escape(grant.path)}"
        case "directory":
            # Only what the rule asks about, so that other rules stay in force there.
            inner = grant.rule.pattern if "/" not in grant.rule.pattern else ""
            below = f"{escape(grant.path)}/" if grant.path else ""
            return f"{top}/{below}**/{inner}" if inner not in ("", "**") else f"{top}/{below}**"
        case "glob":
            if grant.path.startswith(("/", "~/")):
                return grant.path
            name = grant.path.removeprefix("./")
            return f"{top}/{name}" if "/" in grant.path.rstrip("/") else f"{top}/**/{name}"
        case _:
            return None


def _beyond(grant: ShownGrant) -> list[str]:
    reasons = []
    if grant.who != "anybody":
        reasons.append("it is for one program only, and a rule is for anybody")
    if grant.remaining is not None:
        reasons.append("it is for a time only, and a rule is for good")
    if grant.decision == "allow":
        if grant.extent == "glob" and grant.path != grant.rule.pattern:
            reasons.append("it is about what that rule asks about only, and a rule about all that matches")
        if grant.extent == "directory" and "/" in grant.rule.pattern:
            reasons.append("it is about what that rule asks about only, and a rule about all that is there")
    return reasons


def _meaning(grant: ShownGrant) -> dict[str, object]:
    """Return the keys of the rule that says the same as *grant*, and beside that what its own rule says."""
    rule = grant.rule
    if grant.access == "execute":
        return _as_before(rule) | {"execute": grant.decision}
    if grant.decision == "deny":
        return {"mode": "deny"}
    if rule.mode != "ask":
        return _as_before(rule)
    # `ask` is `hold` whose reading and executing wait.
    return {"mode": "hold", "execute": rule.execute or "ask"}


def _as_before(rule: AskingRule) -> dict[str, object]:
    hold = {"hold": list(rule.hold)} if rule.hold else {}
    execute = {} if rule.execute is None else {"execute": rule.execute}
    return {"mode": rule.mode, **hold, **execute}
