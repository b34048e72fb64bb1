"""What was noted of the workspace is read back as it was, whatever happened to the files since."""

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper.baseline import LIMIT, Baseline, BaselineEntry
from sandboxfs.upper.baseline_log import SMALL, BaselineWriter

ODD_NAMES = [
    b"plain",
    b"two\nlines",
    b'quote"back\\slash',
    b"\xff\xfe",
    "ünï😀".encode(),
    b"\xed\xa0\x80",
    b" ",
]


class Place:
    """A workspace and the baseline of it."""

    def __init__(self, home: Path) -> None:
        self.lower = home / "lower"
        self.lower.mkdir()
        self.home = home / "baseline"
        self.home.mkdir()
        self.directory = HostDir.at(self.home)
        self.workspace = HostDir.at(self.lower)
        self.writer = BaselineWriter(self.directory)

    def close(self) -> None:
        self.writer.close()
        self.directory.close()
        self.workspace.close()

    def again(self) -> None:
        """End this writer and start another."""
        self.writer.close()
        self.writer = BaselineWriter(self.directory)

    def write(self, name: bytes, content: bytes) -> Path:
        path = self.lower / os.fsdecode(name)
        path.write_bytes(content)
        return path

    def note(self, name: bytes, path: bytes | None = None, *, keep: bool = True, number: int = 7) -> None:
        status = self.workspace.stat(name)
        assert status is not None
        self.writer.note(name if path is None else path, self.workspace, name, status, number, keep=keep)

    def keep(self, name: bytes) -> None:
        self.writer.keep(name, self.workspace, name)

    def load(self) -> Baseline:
        return Baseline.load(self.directory)

    def entry(self, path: bytes) -> BaselineEntry:
        entry = self.load().get(path)
        assert entry is not None
        return entry

    def content(self, path: bytes) -> bytes | None:
        return self.load().content(self.entry(path))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


def test_everything_about_a_file_is_read_back(place: Place) -> None:
    path = place.write(b"a", b"bytes")
    place.note(b"a", number=1 << 62)
    status = path.lstat()
    entry = place.entry(b"a")
    assert (entry.path, entry.number, entry.target) == (b"a", 1 << 62, None)
    assert (entry.mode, entry.uid, entry.gid) == (status.st_mode, status.st_uid, status.st_gid)
    assert (entry.size, entry.nlink) == (5, 1)
    assert (entry.mtime_ns, entry.ctime_ns) == (status.st_mtime_ns, status.st_ctime_ns)
    assert (entry.dev, entry.ino) == (status.st_dev, status.st_ino)
    assert place.content(b"a") == b"bytes"


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_is_read_back(place: Place, name: bytes) -> None:
    place.write(name, b"of " + name)
    place.note(name)
    place.note(name, b"deep/" + name)
    assert place.content(name) == b"of " + name
    assert place.entry(b"deep/" + name).path == b"deep/" + name


def test_the_newest_entry_of_a_path_counts(place: Place) -> None:
    place.write(b"a", b"first")
    place.note(b"a")
    place.write(b"a", b"second one")
    place.note(b"a")
    assert place.entry(b"a").size == 10
    assert place.content(b"a") == b"second one"


def test_a_digest_alone_is_no_content(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a", keep=False)
    entry = place.entry(b"a")
    assert entry.digest is not None
    assert entry.saved is None
    assert place.content(b"a") is None


def test_an_empty_file_has_a_content(place: Place) -> None:
    place.write(b"a", b"")
    place.note(b"a")
    assert place.content(b"a") == b""


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(place: Place) -> None:
    for name in (b"a", b"b"):
        place.write(name, name)
        place.note(name)
    log = place.home / "log"
    whole = log.read_bytes()
    log.write_bytes(whole[:-4])
    assert place.load().get(b"a") is not None
    assert place.load().get(b"b") is None
    place.again()
    place.note(b"b")
    assert place.content(b"a") == b"a"
    assert place.content(b"b") == b"b"
    assert log.read_bytes().count(b"\n") == 2


def test_a_torn_line_longer_than_a_block_is_cut_off(place: Place) -> None:
    place.write(b"a", b"a")
    place.note(b"a")
    log = place.home / "log"
    whole = log.read_bytes()
    log.write_bytes(whole + b"x" * 100_000)
    place.again()
    assert log.read_bytes() == whole


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"{}", b'{"path":1}', b'{"moved":["a"]}', b'{"kept":"nowhere"}', b"\xff", b'"']
)
def test_a_line_that_makes_no_sense_is_one_entry_less(place: Place, line: bytes) -> None:
    place.write(b"a", b"a")
    place.note(b"a")
    with (place.home / "log").open("ab") as log:
        log.write(line + b"\n")
    place.note(b"a", b"b")
    assert place.entry(b"a").size == 1
    assert place.entry(b"b").size == 1


def test_a_place_in_the_pack_that_no_writer_gives_is_refused(place: Place) -> None:
    place.write(b"a", b"a")
    place.note(b"a")
    log = place.home / "log"
    log.write_bytes(log.read_bytes().replace(b'"saved":[0,1]', b'"saved":[0,%d]' % (1 << 60)))
    assert place.load().get(b"a") is None


def test_a_damaged_pack_is_noticed(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a")
    pack = place.home / "pack"
    pack.write_bytes(b"bytez")
    assert place.content(b"a") is None
    pack.write_bytes(b"byte")
    assert place.content(b"a") is None
    pack.unlink()
    assert place.content(b"a") is None


def test_a_moved_directory_takes_its_entries_along(place: Place) -> None:
    place.write(b"f", b"bytes")
    for path in (b"old", b"old/f", b"old/sub/f", b"older", b"new/stale"):
        place.note(b"f", path)
    place.writer.moved(b"old", b"new")
    place.note(b"f", b"old/again")
    baseline = place.load()
    assert [s.path for s in baseline.below(b"")] == [b"new", b"new/f", b"new/sub/f", b"old/again", b"older"]
    moved = baseline.get(b"new/sub/f")
    assert moved is not None
    assert baseline.content(moved) == b"bytes"


def test_a_directory_may_move_into_its_own_name(place: Place) -> None:
    place.write(b"f", b"bytes")
    place.note(b"f", b"a/f")
    place.writer.moved(b"a", b"a/b")
    assert [s.path for s in place.load().below(b"")] == [b"a/b/f"]


def test_below_gives_what_was_inside_and_nothing_beside_it(place: Place) -> None:
    place.write(b"f", b"")
    for path in (b"", b"a", b"a/b", b"a/b/c", b"a-b", b"ab"):
        place.note(b"f", path)
    baseline = place.load()
    assert [s.path for s in baseline.below(b"a")] == [b"a/b", b"a/b/c"]
    assert [s.path for s in baseline.below(b"")] == [b"a", b"a-b", b"a/b", b"a/b/c", b"ab"]
    assert list(baseline.below(b"none")) == []


def test_a_file_over_the_limit_has_neither_digest_nor_content(place: Place) -> None:
    place.write(b"just", b"x" * LIMIT)
    place.write(b"over", b"x" * (LIMIT + 1))
    place.note(b"just")
    place.note(b"over")
    assert place.content(b"just") == b"x" * LIMIT
    entry = place.entry(b"over")
    assert (entry.size, entry.digest, entry.saved) == (LIMIT + 1, None, None)


def test_a_symlink_is_noted_with_its_target_and_not_followed(place: Place) -> None:
    (place.lower / "link").symlink_to(os.fsdecode(b"to \xff\n"))
    place.note(b"link")
    entry = place.entry(b"link")
    assert stat.S_ISLNK(entry.mode)
    assert entry.target == b"to \xff\n"
    assert (entry.digest, entry.saved) == (None, None)


def test_a_directory_is_noted(place: Place) -> None:
    (place.lower / "d").mkdir(mode=0o750)
    place.note(b"d")
    entry = place.entry(b"d")
    assert entry.mode == stat.S_IFDIR | 0o750
    assert (entry.digest, entry.target, entry.saved) == (None, None, None)


def test_what_took_the_place_of_a_file_is_not_read(place: Place) -> None:
    path = place.write(b"a", b"bytes")
    status = path.lstat()
    path.unlink()
    (place.lower / "secret").write_bytes(b"bytes")
    path.symlink_to("secret")
    place.writer.note(b"a", place.workspace, b"a", status, 1, keep=True)
    assert place.entry(b"a").digest is None


def test_a_file_that_cannot_be_read_is_noted_without_a_digest(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError

    place.write(b"a", b"bytes")
    with monkeypatch.context() as patch:
        patch.setattr(HostDir, "open", refuse)
        place.note(b"a")
    entry = place.entry(b"a")
    assert (entry.size, entry.digest, entry.saved) == (5, None, None)


def test_a_file_that_changed_since_it_was_looked_at_is_noted_as_it_is(place: Place) -> None:
    status = place.write(b"a", b"old").lstat()
    place.write(b"a", b"longer now")
    place.writer.note(b"a", place.workspace, b"a", status, 1, keep=True)
    assert place.entry(b"a").size == 10
    assert place.content(b"a") == b"longer now"


def test_bytes_can_be_kept_later(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a", keep=False)
    noted = place.entry(b"a")
    place.keep(b"a")
    assert place.content(b"a") == b"bytes"
    assert place.entry(b"a").mtime_ns == noted.mtime_ns


def test_bytes_are_kept_only_while_the_file_is_what_was_noted(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a", keep=False)
    noted = place.entry(b"a")
    place.write(b"a", b"other")
    place.keep(b"a")
    assert place.entry(b"a") == noted


def test_nothing_is_kept_of_what_is_gone_or_no_file_any_more(place: Place) -> None:
    for name in (b"a", b"b"):
        place.write(name, b"bytes")
        place.note(name, keep=False)
        (place.lower / os.fsdecode(name)).unlink()
    os.mkfifo(place.lower / "b")
    place.keep(b"a")
    place.keep(b"b")
    assert place.entry(b"a").saved is None
    assert place.entry(b"b").saved is None


def test_bytes_are_kept_once(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a", keep=False)
    for _ in range(3):
        place.keep(b"a")
    assert (place.home / "pack").read_bytes() == b"bytes"
    place.note(b"a", b"copied", keep=True)
    place.writer.keep(b"copied", place.workspace, b"a")
    assert (place.home / "pack").read_bytes() == b"bytes" * 2


def test_a_second_writer_goes_on_where_the_first_one_ended(place: Place) -> None:
    for number, name in enumerate([b"a", b"b", b"c"]):
        place.write(name, name * (number + 1))
        place.note(name)
        place.again()
    assert [place.content(name) for name in (b"a", b"b", b"c")] == [b"a", b"bb", b"ccc"]
    assert place.entry(b"c").saved == (3, 3)


def test_a_forgotten_path_has_no_entry_until_it_is_noted_again(place: Place) -> None:
    place.write(b"a", b"bytes")
    for path in (b"a", b"a/b"):
        place.note(b"a", path)
    place.writer.forget(b"a")
    assert [s.path for s in place.load().below(b"")] == [b"a/b"]
    place.note(b"a")
    assert place.content(b"a") == b"bytes"


def test_what_is_suspended_is_put_aside_and_counts_again_when_it_returns(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a")
    place.writer.suspended(b"a")
    assert (place.load().get(b"a"), place.load().is_aside(b"a")) == (None, True)
    place.writer.returned(b"a")
    assert place.content(b"a") == b"bytes"
    assert not place.load().is_aside(b"a")


def test_what_was_noted_since_counts_when_something_returns(place: Place) -> None:
    place.write(b"a", b"first")
    place.note(b"a")
    place.writer.suspended(b"a")
    place.write(b"a", b"second")
    place.note(b"a")
    place.writer.returned(b"a")
    assert place.content(b"a") == b"second"


@pytest.mark.parametrize(("whole", "left"), [(True, [b"dx"]), (False, [b"d/a", b"d/e/b", b"dx"])])
def test_a_directory_is_put_aside_as_a_whole_or_alone(place: Place, whole: bool, left: list[bytes]) -> None:
    (place.lower / "d").mkdir()
    place.write(b"a", b"bytes")
    place.note(b"d")
    for path in (b"d/a", b"d/e/b", b"dx"):
        place.note(b"a", path)
    place.writer.suspended(b"d", whole=whole)
    assert [s.path for s in place.load().below(b"")] == left
    place.writer.returned(b"d", whole=whole)
    assert [s.path for s in place.load().below(b"")] == [b"d", b"d/a", b"d/e/b", b"dx"]


def test_what_is_put_aside_moves_and_is_forgotten_like_the_rest(place: Place) -> None:
    (place.lower / "d").mkdir()
    place.write(b"a", b"bytes")
    place.note(b"d")
    place.note(b"a", b"d/a")
    place.writer.suspended(b"d/a")
    place.writer.moved(b"d", b"e")
    assert place.load().is_aside(b"e/a")
    place.writer.forget(b"e/a")
    place.writer.returned(b"e/a")
    assert place.load().get(b"e/a") is None


def test_a_cleared_baseline_starts_anew(place: Place) -> None:
    place.write(b"a", b"bytes")
    place.note(b"a")
    place.writer.clear()
    assert place.load().get(b"a") is None
    assert (place.home / "pack").read_bytes() == b""
    place.note(b"a")
    assert place.content(b"a") == b"bytes"


def test_no_log_means_no_entries(tmp_path: Path) -> None:
    with HostDir.at(tmp_path) as directory:
        assert list(Baseline.load(directory).below(b"")) == []


def test_a_full_disk_fails_an_entry_and_leaves_the_others_whole(place: Place) -> None:
    place.write(b"a", b"a")
    place.note(b"a")
    whole = (place.home / "log").stat().st_size
    # Past the limit a write is cut short; when nothing fits, it fails and a signal comes with it.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole + 20, limits[1]))
        with pytest.raises(OSError):
            place.note(b"a", b"b")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert (place.home / "log").stat().st_size == whole
    place.note(b"a", b"c")
    baseline = place.load()
    assert [s.path for s in baseline.below(b"")] == [b"a", b"c"]


# A log that has grown


def grow(place: Place) -> tuple[list[BaselineEntry], list[bool]]:
    """Write many lines that come to little; what they come to."""
    for name in (b"stays", b"aside", b"both", *ODD_NAMES):
        place.write(name, b"of " + name)
        place.note(name)
    for _ in range(2000):
        place.writer.suspended(b"stays")
        place.writer.returned(b"stays")
    for name in (b"aside", b"both"):
        place.writer.suspended(name)
    place.note(b"both", number=8)
    return seen(place)


def seen(place: Place) -> tuple[list[BaselineEntry], list[bool]]:
    baseline = place.load()
    return list(baseline.below(b"")), [baseline.is_aside(name) for name in (b"stays", b"aside", b"both")]


def test_a_long_log_is_condensed_by_the_next_writer_and_says_the_same(place: Place) -> None:
    before = grow(place)
    long = (place.home / "log").stat().st_size
    place.again()
    assert (place.home / "log").stat().st_size < long / 20
    assert seen(place) == before
    assert before[1] == [False, True, True]
    assert place.content(b"stays") == b"of stays"
    for name in (b"aside", b"both"):
        place.writer.returned(name)
    assert place.entry(b"aside").size == 8
    assert place.entry(b"both").number == 8, "an older one came back"
    assert sorted(os.listdir(place.home)) == ["log", "pack"]


def test_a_log_whose_lines_all_count_is_condensed_once_and_then_left_alone(place: Place) -> None:
    place.write(b"a", b"a")
    for number in range(1500):
        place.note(b"a", b"path %d" % number, keep=False)
    place.again()
    condensed = (place.home / "log").stat()
    assert condensed.st_size > SMALL
    place.again()
    assert (place.home / "log").stat().st_ino == condensed.st_ino
    assert len(list(place.load().below(b""))) == 1500


def test_a_short_log_is_left_alone(place: Place) -> None:
    place.write(b"a", b"a")
    place.note(b"a")
    place.writer.forget(b"a")
    before = (place.home / "log").read_bytes()
    place.again()
    assert (place.home / "log").read_bytes() == before


def test_a_log_that_there_is_no_room_to_condense_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = grow(place)
    whole = (place.home / "log").read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    place.again()
    assert (place.home / "log").read_bytes() == whole
    assert sorted(os.listdir(place.home)) == ["log", "pack"]
    assert seen(place) == before
