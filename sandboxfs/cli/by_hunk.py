"""How does `-p` turn what a person answers into what is planned?

The changes that a summary would show are laid before the person, one after the other. What they imply is not
asked about: the directory around a new file comes along, and one whose content is all taken goes with it.
Of several names of one file only the first is asked about: they go together.
"""

from collections.abc import Callable, Iterable, Iterator

from sandboxfs.changes.choice import Choice, Extent, Pick, Verb
from sandboxfs.changes.choosing import Choose, Part
from sandboxfs.changes.finding import Finding
from sandboxfs.changes.flags import Flag
from sandboxfs.changes.offering import Item, offer
from sandboxfs.changes.patch import Kind
from sandboxfs.changes.steps import is_below
from sandboxfs.changes.summary import without_implied
from sandboxfs.changes.tree import Unreadable
from sandboxfs.cli import output
from sandboxfs.cli.picking import open_terminal, pick
from sandboxfs.paths import quoted

FlagsOf = Callable[[Finding], list[Flag]]


def ask_by_hunk(verb: Verb, findings: list[Finding], flags_of: FlagsOf) -> Choose:
    """Ask about *findings*, and return what was answered."""
    asked = list(_asked_about(findings))
    with open_terminal(verb) as terminal:
        choice = pick(_items(asked, flags_of), verb, terminal)
    left = [finding.path for finding in asked if choice.of(finding.path).extent is not Extent.ALL]

    def choose(finding: Finding) -> Part | bool:
        if finding.path not in choice.picks and finding.kind is Kind.DELETED and finding.is_dir:
            return not any(is_below(path, finding.path) for path in left)
        return _taken(verb, finding, choice)

    return choose


def _items(asked: Iterable[Finding], flags_of: FlagsOf) -> Iterator[Item]:
    for finding in asked:
        try:
            item = offer(finding, notes=tuple(_notes(finding, flags_of)))
        except (OSError, Unreadable) as error:
            output.note(f"note: {quoted(finding.path)} cannot be read, and is passed over: {error}")
            continue
        yield item


def _asked_about(findings: list[Finding]) -> Iterator[Finding]:
    answered: set[bytes] = set()
    for finding in without_implied(findings):
        if finding.path not in answered:
            yield finding
            answered.update(finding.links)


def _notes(finding: Finding, flags_of: FlagsOf) -> Iterable[bytes]:
    flags = flags_of(finding)
    if flags:
        yield b"look twice: " + ", ".join(flags).encode()
    if finding.conflict is not None:
        yield b"conflict: " + finding.conflict.encode()


def _taken(verb: Verb, finding: Finding, choice: Choice) -> Part | bool:
    picked = choice.of(finding.path)
    if picked.extent is not Extent.PART:
        return picked.extent is Extent.ALL
    return Part(_text(verb, finding, picked), picked.mode)


def _text(verb: Verb, finding: Finding, picked: Pick) -> bytes:
    if verb == "discard":
        return picked.kept(b"" if finding.new is None else finding.new.read())
    return picked.committed(b"" if finding.old is None else finding.old.read())
