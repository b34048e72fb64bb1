"""Standing grants: the answers that stay, which of them decides about an access, and when each is over.

A grant stands for the session, for a time, as long as a process lives, or, for `once`, as long as the files
that it opened. One that a person keeps is in the user's configuration as well, and stands in every session.
What was opened because of a grant is decided again when the grant is gone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

from sandboxfs.daemon.pending_question import GivenAnswer
from sandboxfs.daemon.program_lookup import Processes
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.grants import Asker, Attempt, Extent, Grant, KeptGrant, Wish, names_path
from sandboxfs.policy.model import Access, Decision, Policy

MOST_GRANTS = 1000
# Seconds for which a grant for once that opened nothing is kept.
_UNUSED = 1.0


class Record(Protocol):
    """Where questions, answers and grants are recorded."""

    def event(self, event: str, **details: object) -> None: ...


@dataclass(eq=False)
class StandingGrant:
    """A grant with what is counted of it, and as it is *kept* in the user's configuration, if it is.

    *question* is None for one that was kept in an earlier session.
    """

    grant: Grant
    question: int | None
    since: float
    hits: int = 0
    open: int = 0
    kept: KeptGrant | None = None


class StandingGrants:
    """The grants of one session."""

    def __init__(
        self,
        processes: Processes,
        record: Record,
        root: str,
        clock: Callable[[], float],
        next_number: Callable[[], int],
    ) -> None:
        self._processes = processes
        self._record = record
        self._root = root
        self._clock = clock
        self._next_number = next_number
        self._grants: dict[int, StandingGrant] = {}
        # Called with the numbers of grants that are gone.
        self.withdrawn: Callable[[set[int]], None] = lambda grants: None

    # What is granted

    @property
    def exist(self) -> bool:
        return bool(self._grants)

    def in_force(self) -> list[StandingGrant]:
        """Return the grants, the oldest first."""
        return list(self._grants.values())

    def deciding(self, attempt: Attempt, thread: int) -> StandingGrant | None:
        """Return the newest grant that decides about an attempt."""

        @cache
        def asker() -> Asker:
            return Asker(self._processes.exe(thread), self._processes.marks(thread))

        now = self._clock()
        for standing in reversed(self._grants.values()):
            until = standing.grant.until
            if (until is None or now < until) and standing.grant.covers(attempt, asker):
                return standing
        return None

    def refusing(self, attempt: Attempt) -> StandingGrant | None:
        """Return the grant that refuses an *attempt* to anybody, if there is one."""
        standing = self.deciding(attempt, 0)
        return standing if standing is not None and not standing.grant.allows else None

    def stands(self, grant: int, decision: Decision, access: Access) -> bool:
        standing = self._grants.get(grant)
        return (
            standing is not None
            and standing.grant.allows
            and standing.grant.access is access
            and standing.grant.rule.identity == decision.rule_for(access).identity
        )

    def keep_apart(self, before: str, after: str) -> bool:
        """Tell whether no grant allows *after* and not *before*."""
        return not any(
            grant.allows and self._names(grant, after) and not self._names(grant, before)
            for grant in (standing.grant for standing in self._grants.values())
            if not isinstance(grant.access, Wish)
        )

    def _names(self, grant: Grant, path: str) -> bool:
        return names_path(grant.extent, grant.target, path, self._root)

    def seconds_left(self, grant: Grant) -> float | None:
        """Return the seconds that a grant has left; None for one that lasts as long as the session."""
        return None if grant.until is None else max(0.0, grant.until - self._clock())

    # What begins

    def keep_before(self, kept: Iterable[KeptGrant], policy: Policy) -> None:
        """Begin with what was kept in earlier sessions."""
        for one in kept:
            self._stand(one.in_force(self._next_number(), policy), None, one)

    def preview(self, attempt: Attempt, answer: GivenAnswer) -> Grant:
        """Return the grant that an answer would leave, with an invented number; raise where it is refused."""
        grant = Grant(
            0,
            answer.allows,
            attempt.access,
            attempt.rule,
            answer.extent,
            answer.target,
            answer.recipient,
            None if answer.during is None else self._clock() + answer.during,
            answer.reason,
        )
        # It is about what was shown.
        if grant.extent is Extent.GLOB and not grant.names(attempt):
            raise UsageError(f"pattern {quoted(grant.target)} does not match {quoted(attempt.path)}")
        self._check_room()
        return grant

    def add(
        self, attempt: Attempt, answer: GivenAnswer, question: int, kept: KeptGrant | None
    ) -> StandingGrant:
        """Let an answer to a *question* stay."""
        grant = self.preview(attempt, answer)
        return self._stand(replace(grant, number=self._next_number()), question, kept)

    def add_wish(self, attempt: Attempt) -> StandingGrant:
        """Let a wish stand that a person has without having been asked."""
        self._check_room()
        grant = Grant(self._next_number(), True, attempt.access, attempt.rule, Extent.PATH, attempt.path)
        return self._stand(grant, None)

    def _check_room(self) -> None:
        if sum(standing.question is not None for standing in self._grants.values()) >= MOST_GRANTS:
            raise UsageError(
                f"there are {MOST_GRANTS} grants already", hint="take some back: sandboxfs revoke ID"
            )

    def _stand(self, grant: Grant, question: int | None, kept: KeptGrant | None = None) -> StandingGrant:
        standing = StandingGrant(grant, question, self._clock(), kept=kept)
        self._grants[grant.number] = standing
        return standing

    # What ends

    def opened(self, grant: int) -> None:
        if grant in self._grants:
            self._grants[grant].open += 1

    def closed(self, grant: int) -> None:
        standing = self._grants.get(grant)
        if standing is not None:
            standing.open -= 1
            if standing.open <= 0 and standing.grant.extent is Extent.ONCE:
                del self._grants[grant]

    def drop(self, number: int) -> None:
        """Forget a grant that nothing came of."""
        self._grants.pop(number, None)

    def revoke(self, numbers: set[int]) -> list[StandingGrant]:
        """Take grants back; the files that they opened are decided again by `withdrawn`."""
        unknown = numbers - self._grants.keys()
        if unknown:
            raise UsageError(f"there is no grant {min(unknown)}")
        return self._end(numbers, "revoked")

    def tick(self) -> None:
        """End what is over by the clock, or with a process."""
        now = self._clock()
        gone = {number for number, standing in self._grants.items() if self._is_over(standing, now)}
        self._end(gone, "grant over")

    @property
    def need_ticks(self) -> bool:
        """Whether any is to be ended by the clock."""
        return any(
            grant.until is not None or grant.extent is Extent.ONCE or grant.recipient.root is not None
            for grant in (standing.grant for standing in self._grants.values())
        )

    def _is_over(self, standing: StandingGrant, now: float) -> bool:
        grant = standing.grant
        if grant.until is not None and now >= grant.until:
            return True
        if grant.extent is Extent.ONCE:
            return standing.open <= 0 and now - standing.since > _UNUSED
        root = grant.recipient.root
        return root is not None and not self._processes.lives(root)

    def _end(self, numbers: set[int], event: str) -> list[StandingGrant]:
        gone = [self._grants.pop(number) for number in sorted(numbers)]
        for standing in gone:
            self._record.event(event, **_about(standing))
        if numbers:
            self.withdrawn(numbers)
        return gone


def _about(standing: StandingGrant) -> dict[str, object]:
    grant = standing.grant
    return {
        "grant": grant.number,
        "access": grant.access.value,
        "extent": grant.extent.value,
        "target": grant.target,
        "rule": str(grant.rule),
        "hits": standing.hits,
    }
