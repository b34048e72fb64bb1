"""The summary of changes: right numbers, within the width."""

import pytest

from sandboxfs.review.change import ChangeKind
from sandboxfs.review.patch import FilePatch, StatRow, format_stat, stat_row

FILE = 0o100644


def test_row_counts_lines_and_binary_sizes() -> None:
    assert stat_row(FilePatch(b"a", ChangeKind.MODIFIED, FILE, FILE, b"1\n2\n", b"1\n3\n4\n")) == StatRow(
        b"a", 2, 1
    )
    assert stat_row(FilePatch(b"a", ChangeKind.ADDED, None, FILE, b"", b"x\0")) == StatRow(b"a", sizes=(0, 2))


def test_summary_reads_like_that_of_git() -> None:
    rows = [
        StatRow(b"src/a.py", 2, 1),
        StatRow(b"b\n", 0, 1),
        StatRow(b"c", sizes=(0, 20)),
        StatRow(b"e", old_path=b"d"),
    ]
    assert format_stat(rows) == [
        " src/a.py | 3 ++-",
        ' "b\\n"    | 1 -',
        " c        | Bin 0 -> 20 bytes",
        " d => e   | 0",
        " 4 files changed, 2 insertions(+), 2 deletions(-)",
    ]


@pytest.mark.parametrize("width", [50, 80, 132])
def test_no_row_is_wider_than_asked(width: int) -> None:
    rows = [StatRow(b"deep/" * 40 + b"%d" % number, number**3, number) for number in range(30)]
    lines = format_stat([*rows, StatRow(b"x" * 200, sizes=(10**9, 10**9))], width)
    assert max(map(len, lines[:-1])) <= width
    assert lines[1].endswith("+-"), "a small change keeps its signs beside a large one"


def test_nothing_changed_gives_no_lines() -> None:
    assert format_stat([]) == []
