"""How is a policy told to a program?

The same answer comes from the daemon of a mounted sandbox and from the record of one that is not, so what a
rule and an explanation look like in JSON is written here once.
"""

import errno
import os
import stat
from pathlib import Path

from sandboxfs.policy.decide import Exists, names_of
from sandboxfs.policy.explain import Explanation
from sandboxfs.policy.model import Needs, Rule


def described_rule(rule: Rule) -> dict[str, object]:
    """Describe *rule*: its pattern and mode, and where it was written."""
    return {
        "pattern": rule.pattern,
        "mode": rule.mode.value,
        "source": str(rule.source),
        "kind": rule.source.kind.value,
    }


def described_explanation(found: Explanation) -> dict[str, object]:
    """Describe an explanation as `why` gives it."""
    number = found.decision.errno(found.access)
    return {
        "path": found.path or ".",
        "access": found.access.value,
        "allowed": found.allowed,
        "mode": found.decision.mode.value,
        "errno": errno.errorcode[number] if number else None,
        "rule": described_rule(found.decision.rule),
        "decided_at": found.decided_at or ".",
        "sentence": found.sentence(),
        "passed": [described_rule(rule) for rule in found.passed],
        "remedies": [{"where": remedy.where, "text": remedy.text} for remedy in found.remedies],
    }


def present_in(workspace: Path, path: str) -> Exists:
    """Look how much of the way to *path* is in *workspace*; the answer tells it without looking again."""
    place, depth = workspace, 0
    for name in names_of(path):
        place /= name
        try:
            status = os.lstat(place)
        except OSError:
            break
        depth += 1
        if not stat.S_ISDIR(status.st_mode):
            break

    def exists(way: str, needs: Needs) -> bool:
        wanted = len(names_of(way)) - (needs is Needs.PARENT)
        return wanted <= depth

    return exists
