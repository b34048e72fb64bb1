"""A journal for tests that are about something else."""

from sandboxfs.overlay.decisions import Journal
from sandboxfs.overlay.filesystem import Caller
from sandboxfs.policy.model import Access, Decision


class Silent(Journal):
    reads = False

    def count_read(self, decision: Decision) -> None: ...
    def record(
        self,
        op: str,
        access: Access,
        path: bytes,
        to: bytes | None,
        decision: Decision,
        caller: Caller,
        error: int,
    ) -> None: ...
