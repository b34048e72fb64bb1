"""What must not hold up everybody else?

A cold read, an fsync, the copy of a large file take their time on the disk, and the overlay answers one
request at a time. Who serves it may let such work be done beside (`Beside.allowed`): then the request is
given up with `Later`, which says what there is to do. When that is done, in another thread, its result is the
answer, or the request is made again and finds the work done. The work touches nothing of the overlay but what
it was given.
"""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Later(BaseException):
    """Do *work* first, in another thread; *answers* says that it gives the answer, else the request is made
    again, and then *over* is called. No error: nobody but the one who serves may catch it."""

    def __init__(
        self, work: Callable[[], object], *, answers: bool, over: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.work = work
        self.answers = answers
        self.over = over


class Beside:
    """Whether work may be done beside; one for all parts of an overlay."""

    __slots__ = ("allowed",)

    def __init__(self) -> None:
        self.allowed = False

    def answer(self, work: Callable[[], T]) -> T:
        """Have *work* give the answer, beside where that is allowed."""
        if self.allowed:
            raise Later(work, answers=True)
        return work()
