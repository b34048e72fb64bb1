"""Did the sandbox change anything where a person looks for it?"""

from collections.abc import Iterable, Mapping

from sandboxfs.changes.finding import Finding
from sandboxfs.changes.selection import within
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted


def untouched(paths: Mapping[bytes, str], findings: Iterable[Finding]) -> list[str]:
    """Say of each of *paths*, given as a person typed it, that nothing changed there, if so."""
    found = list(findings)
    return [
        f"the sandbox changed nothing at {quoted(given)}"
        for path, given in paths.items()
        if not any(within(finding, [path]) for finding in found)
    ]


def check_touched(paths: Mapping[bytes, str], findings: Iterable[Finding]) -> None:
    """Refuse paths at which there is nothing to be done."""
    for complaint in untouched(paths, findings):
        raise UsageError(complaint, hint="'sandboxfs diff --name-status' shows what it changed")
