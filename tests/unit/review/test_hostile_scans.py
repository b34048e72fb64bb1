"""Scans of what a sandbox wrote: the time they take is linear in it, whatever it is, and bounded."""

import random
import stat
from collections.abc import Callable
from functools import partial

import pytest

from sandboxfs.cli.output import harmless
from sandboxfs.cli.terminal import visible
from sandboxfs.commit.upper_edits import ordered
from sandboxfs.errors import UsageError
from sandboxfs.paths import PathSet, is_below, quoted
from sandboxfs.policy.model import Policy
from sandboxfs.policy.toml import parse_document
from sandboxfs.review import flags as scan
from sandboxfs.review.change import ChangeKind, PathChange, Version
from sandboxfs.review.flags import Budget, Flag, Look, flags, secrets
from sandboxfs.review.gitignore import compile_wildcard
from sandboxfs.review.hunks import MOST_LINES, hunks, is_binary
from sandboxfs.review.patch import quote_name
from sandboxfs.review.scope import Dependencies
from sandboxfs.review.summary import FlagContext
from sandboxfs.review.text_diff import diff_lines
from sandboxfs.review.text_merge import merge
from sandboxfs.upper.walk import UpperMap
from tests.support.growth import grows_linearly

FILE = 0o100644
# So that every pattern is tried.
WORDS = (
    b"PRIVATE KEY AKIA ASIA AIza ghp_ github_pat_ glpat- xox hooks.slack.com/ sk- sk_live_ npm_ pypi- key\n"
)
PIECES = [
    b"sk-", b"sk-a1-", b"=", b"=a", b"= ", b"token=", b"token='", b":    ", b"hooks.slack.com/services/T",
    b"T0/B0/", b"-----BEGIN ", b"RSA ", b"AKIA", b"xoxb-", b"ghp_", b"npm_", b"glpat-", b"pypi-AgEI", b"0",
    b"a", b"-", b"_", b"secret", b"key", b'"', b"\n", b"\xff", b"=" + b"aB3" * 9 + b"\n",
]  # fmt: skip


def repeated(piece: bytes, size: int) -> bytes:
    return piece * (size // len(piece) + 1)


@pytest.mark.parametrize("piece", PIECES)
def test_time_of_the_search_for_secrets_is_linear_in_a_piece_repeated(piece: bytes) -> None:
    assert grows_linearly(lambda size: partial(secrets, WORDS + repeated(piece, size)), 1 << 14)


def test_time_of_the_search_for_secrets_is_linear_in_pieces_put_together_by_chance() -> None:
    chance = random.Random(18)
    for _ in range(12):
        piece = b"".join(chance.choices(PIECES, k=chance.randint(2, 6)))
        work = partial(lambda piece, size: partial(secrets, WORDS + repeated(piece, size)), piece)
        assert grows_linearly(work, 1 << 14), piece


def test_key_among_repetitions_is_found() -> None:
    key = b"sk-proj-" + b"aB3d" * 12
    assert flags(b"a", None, Look(FILE, 1, b"sk-" * 20000 + b"\n" + key)) == ["secret"]
    assert flags(b"a", None, Look(FILE, 1, b"sk-" * 20000 + b"\n" + b"sk-words-" * 100)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"pyproject.toml", lambda size: b"a." * size + b"a=1"),
        (b"pyproject.toml", lambda size: b"[" + b"a." * size + b"a]\n"),
        (b"pyproject.toml", lambda size: b"x={" + b"a={" * size),
        (b"package.json", lambda size: b'{"scripts":' + b"[" * size),
        (b"package.json", lambda size: b"9" * size),
        (b"config", lambda size: b"[ " * size + b"\n" + b" " * size),
    ],
)
def test_time_of_reading_a_project_file_is_linear(name: bytes, text: Callable[[int], bytes]) -> None:
    work = lambda size: partial(flags, name, None, Look(FILE, size, text(size)))  # noqa: E731
    assert grows_linearly(work, 1 << 10, largest=1 << 16)


def test_configuration_with_a_key_of_many_parts_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"^f:2: more than 200 dots on one line$"):
        parse_document("f", b"\n" + b"a." * 250_000 + b"a = 1\n")


def test_file_that_is_read_in_part_is_flagged_unscanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MOST_OF_A_FILE", 100)
    context = FlagContext(b"/w", Policy(), Budget(all_files=250))
    found = [context.flags(added(side)) for side in sides()]
    assert found == [[], [Flag.UNSCANNED], [], [Flag.UNSCANNED], []]


def sides() -> list[Version]:
    """Files of 80 bytes, 200 (half of them are read), 60, 60 (10 are left), and none."""
    return [side(path=b"a", size=size) for size in (80, 200, 60, 60, 0)]


def added(new: Version) -> PathChange:
    return PathChange(b"a", ChangeKind.ADDED, None, new, None, b"a")


def test_file_that_cannot_be_read_is_flagged_unscanned() -> None:
    def unreadable() -> bytes:
        from sandboxfs.hostfs.tree import Unreadable

        raise Unreadable("gone")

    broken = side(b"a", 7, read=unreadable)
    assert FlagContext(b"/w", Policy()).flags(added(broken)) == ["unscanned"]


def test_project_file_of_which_a_part_is_not_read_counts_as_one_that_runs() -> None:
    same = Look(FILE, 9, b"{}")
    assert flags(b"package.json", same, Look(FILE, 9, b"{}", unread=True)) == ["runs", "unscanned"]


def test_text_of_more_lines_than_are_compared_is_binary() -> None:
    assert not is_binary(b"\n" * MOST_LINES)
    assert is_binary(b"\n" * (MOST_LINES + 1))
    assert merge(b"", b"\n" * (MOST_LINES + 1), b"x\n").binary


TEXTS: list[Callable[[int], tuple[list[bytes], list[bytes]]]] = [
    lambda size: ([b"a\n"] * size, [b"b\n", *[b"a\n"] * (size - 2), b"b\n"]),
    lambda size: ([b"a\n", b"b\n"] * size, [b"b\n", b"a\n", b"a\n"] * size),
    lambda size: (
        [b"%d\n" % (n // 2) for n in range(size)],
        [b"%d\n" % (n // 2) for n in range(size, 0, -1)],
    ),
    lambda size: ([b"%d\n" % (n % 100) for n in range(size)], [b"%d\n" % (n * 7 % 100) for n in range(size)]),
    lambda size: (
        ([b"a\n"] * 500 + [b"b\n"]) * (size // 500),
        ([b"a\n"] * 499 + [b"b\n"]) * (size // 500),
    ),
]


@pytest.mark.parametrize("texts", TEXTS)
def test_time_of_comparing_repetitive_texts_is_linear(
    texts: Callable[[int], tuple[list[bytes], list[bytes]]],
) -> None:
    assert grows_linearly(lambda size: partial(diff_lines, *texts(size)), 1 << 13, largest=1 << 16)


def test_time_of_making_hunks_that_are_all_alike_is_linear() -> None:
    def work(size: int) -> Callable[[], object]:
        return partial(hunks, b"x\n" * 9 * size, (b"x\n" * 8 + b"y\n") * size)

    assert grows_linearly(work, 1 << 8, largest=1 << 13)


@pytest.mark.parametrize("pattern", [b"*a" * 40 + b"b", b"**/a/" * 20 + b"b", b"?*" * 40, b"*[!a]*" * 20])
def test_time_of_matching_an_ignore_pattern_is_linear_in_the_path(pattern: bytes) -> None:
    matches = compile_wildcard(pattern)
    for piece in (b"a", b"a/", b"ab"):
        assert grows_linearly(
            partial(lambda piece, size: partial(matches, piece * size), piece), 1 << 8, largest=1 << 13
        )


@pytest.mark.parametrize("show", [visible, harmless, quoted, quote_name])
@pytest.mark.parametrize("piece", [b"\x1b[", b"\xff", "\u202e".encode(), b"'\\", b" | 1 + "])
def test_time_of_making_text_harmless_is_linear(show: Callable[[bytes], object], piece: bytes) -> None:
    assert grows_linearly(lambda size: partial(show, piece * size), 1 << 10)


# Changes, by their number


def side(path: bytes, size: int = 0, ino: int = 1, read: Callable[[], bytes] | None = None) -> Version:
    return Version(
        mode=stat.S_IFREG | 0o644,
        uid=0,
        gid=0,
        size=size,
        mtime_ns=0,
        ctime_ns=0,
        dev=1,
        ino=ino,
        nlink=2,
        read=read or (lambda: b"x" * size),
    )


def names_of_one_file(count: int) -> list[PathChange]:
    paths = [b"%d" % number for number in range(count)]
    new = side(b"")
    return [PathChange(path, ChangeKind.ADDED, None, new, None, path) for path in paths]


def test_time_of_finding_what_belongs_together_is_linear_in_the_names_of_one_file() -> None:
    def work(size: int) -> Callable[[], object]:
        findings = names_of_one_file(size)
        return lambda: Dependencies(findings, UpperMap({}, {})).closure([0])

    assert grows_linearly(work, 1 << 9, largest=1 << 13)


def test_names_of_one_file_still_need_each_other() -> None:
    needs = Dependencies(names_of_one_file(5), UpperMap({}, {}))
    assert needs.closure([3]) == needs.dependents([1]) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "moves",
    [
        lambda size: [(b"a%d" % n, b"b%d" % n) for n in range(size)],
        lambda size: [(b"d%d" % n, b"d%d" % (n + 1)) for n in range(size)],
        lambda size: [(b"d%d" % n, b"d%d" % ((n + 1) % size)) for n in range(size)],
    ],
    ids=["apart", "chain", "circle"],
)
def test_time_of_ordering_renamed_directories_is_linear(
    moves: Callable[[int], list[tuple[bytes, bytes]]],
) -> None:
    assert grows_linearly(lambda size: lambda: list(ordered(moves(size))), 1 << 7, largest=1 << 14)


def by_looking_at_all(moves: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The order found in the plainest way, in cubic time."""
    pending, found = sorted(moves, key=lambda move: move[1].count(b"/")), []
    while pending:
        free = (move for move in pending if not any(is_below(other[0], move[1]) for other in pending))
        old, new = next(free, pending[0])
        pending.remove((old, new))
        found.append((old, new))
        pending = [
            (new + source[len(old) :] if is_below(source, old) else source, target)
            for source, target in pending
        ]
    return found


def test_renamed_directories_are_ordered_as_by_looking_at_all_of_them() -> None:
    chance = random.Random(4)
    paths = [b"/".join(chance.choices([b"a", b"b", b"c"], k=chance.randint(1, 3))) for _ in range(3000)]
    for _ in range(400):
        count = chance.randint(0, 9)
        sources, targets = (
            sorted(set(chance.choices(paths, k=count))),
            list(set(chance.choices(paths, k=count))),
        )
        moves = list(zip(sources, targets, strict=False))
        assert list(ordered(moves)) == by_looking_at_all(moves)


def test_places_answer_as_a_look_at_each_of_them_does() -> None:
    chance = random.Random(9)
    for _ in range(300):
        paths = ["/".join(chance.choices("ab-", k=chance.randint(1, 4))).encode() for _ in range(6)]
        *some, path = [b"" if chance.random() < 0.05 else one for one in paths]
        places = PathSet(some)
        assert places.hold(path) == any(is_below(path, one) for one in some)
        assert places.reach_into(path) == any(is_below(one, path) for one in some)
