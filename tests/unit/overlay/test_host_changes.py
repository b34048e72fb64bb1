"""What lasts because it is watched, within which limits, and what is outdated by what the host does."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from sandboxfs.hostfs import inotify
from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.inotify import Event, Inotify
from sandboxfs.overlay.filesystem import ANYBODY, ROOT_INODE, AttributeChange, Entry, Lasting
from sandboxfs.overlay.host_changes import Invalidation
from sandboxfs.overlay.overlay import Overlay, OverlayPaths
from tests.support.tree import HardLink, Tree, build

BRIEFLY, WATCHED, LONG = Lasting.BRIEFLY, Lasting.WATCHED, Lasting.LONG
TREE: Tree = {"file": "text", "dir/one": "1", "dir/two": "2", "dir/sub/deep": "deep", "other/": ""}


class Watched:
    """An overlay that is asked as the kernel asks, and what it has noticed."""

    def __init__(self, place: Path, tree: Tree, watches: int, hidden: list[Path]) -> None:
        self.lower = build(place / "workspace", tree)
        parts = [place / name for name in ("upper", "work", "index")]
        for part in parts:
            part.mkdir()
        self.upper = parts[0]
        paths = OverlayPaths([self.lower], *parts)
        self.fs = Overlay(paths, hidden=[self.lower / path for path in hidden], watches=watches)
        self.noticing = self.fs.noticing()
        self.references: dict[int, int] = {}
        self.handles: list[int] = []

    def look(self, path: str | bytes) -> Entry:
        """Look up every name on the way; the entry of the last."""
        ino = ROOT_INODE
        entry = self.fs.getattr(ino)
        for name in os.fsencode(path).split(b"/"):
            found = self.fs.lookup(ino, name)
            assert found is not None, path
            entry, ino = found, found.ino
            self.references[ino] = self.references.get(ino, 0) + 1
        return entry

    def ino(self, path: str) -> int:
        return self.look(path).ino if path else ROOT_INODE

    def list(self, path: str) -> dict[bytes, Entry]:
        handle = self.fs.opendir(self.ino(path))
        found = {}
        for name, entry, _ in self.fs.readdir(handle, 0):
            found[name] = entry
            if name not in (b".", b".."):
                self.fs.remember(entry.ino)
                self.references[entry.ino] = self.references.get(entry.ino, 0) + 1
        self.fs.releasedir(handle)
        return found

    def listed(self, path: str) -> int:
        """The handle of a listing that was read to its end, of which the kernel took nothing."""
        handle = self.fs.opendir(self.ino(path))
        self.handles.append(handle)
        for _, entry, _ in self.fs.readdir(handle, 0):
            self.fs.forget(entry.ino, 0)
        return handle

    def forget(self) -> None:
        for handle in self.handles:
            self.fs.releasedir(handle)
        for ino, count in self.references.items():
            self.fs.forget(ino, count)
        self.references.clear()
        self.handles.clear()

    def noticed(self) -> Invalidation:
        """All that the host's doings outdate."""
        while self.noticing.gather():
            pass
        return self.told()

    def told(self) -> Invalidation:
        outdated = Invalidation()
        for noticed in self.noticing.noticed(2):
            part = noticed.outdated
            outdated.inodes |= part.inodes
            outdated.expired |= part.expired
            outdated.removed |= part.removed
        return outdated

    @property
    def watches(self) -> int:
        return len(self.fs._watching)


class Make(Protocol):
    def __call__(
        self, tree: Tree = ..., *, watches: int = ..., hidden: list[Path] | None = ...
    ) -> Watched: ...


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Watched] = []
    umask = os.umask(0)

    def made_of(tree: Tree = TREE, *, watches: int = 100, hidden: list[Path] | None = None) -> Watched:
        made.append(Watched(tmp_path, tree, watches, hidden or []))
        return made[-1]

    yield made_of
    os.umask(umask)
    for one in made:
        one.forget()
        one.fs.close()


# What lasts


def test_names_and_attributes_in_a_watched_directory_last(make: Make) -> None:
    here = make()
    entry = here.look("dir/one")
    assert (entry.name, entry.attributes) == (LONG, WATCHED)
    assert here.watches == 2


def test_names_and_attributes_that_are_listed_last(make: Make) -> None:
    entry = make().list("dir")[b"one"]
    assert (entry.name, entry.attributes) == (LONG, WATCHED)


def test_that_a_name_is_absent_lasts_in_a_watched_directory(make: Make) -> None:
    here = make()
    assert here.fs.lookup(here.ino("dir"), b"absent") is None
    assert here.fs.absence_lasts(here.ino("dir"))


def test_nothing_of_the_workspace_lasts_where_nothing_is_watched(make: Make) -> None:
    here = make(watches=0)
    entry = here.look("dir/one")
    assert (entry.name, entry.attributes) == (BRIEFLY, BRIEFLY)
    assert not here.fs.absence_lasts(here.ino("dir"))
    assert here.noticing.fd is None
    assert not here.noticing.gather()


def test_the_attributes_of_a_directory_last_once_it_was_looked_into(make: Make) -> None:
    here = make()
    assert here.look("dir").attributes is BRIEFLY
    assert here.look("dir").name is LONG
    here.list("dir")
    assert here.look("dir").attributes is LONG


def test_the_attributes_of_a_file_with_another_name_do_not_last(make: Make) -> None:
    here = make({"dir/one": "1", "second": HardLink("dir/one")})
    entry = here.look("dir/one")
    assert (entry.name, entry.attributes) == (LONG, BRIEFLY)


def test_what_the_sandbox_made_lasts_without_a_watch(make: Make) -> None:
    here = make(watches=0)
    here.fs.mkdir(ROOT_INODE, b"new", 0o755, ANYBODY)
    entry = here.look("new")
    assert (entry.name, entry.attributes) == (LONG, LONG)
    assert here.fs.absence_lasts(entry.ino)


def test_the_attributes_of_an_open_file_that_the_host_moved_away_do_not_last(make: Make) -> None:
    here = make()
    ino = here.ino("dir/one")
    handle = here.fs.open(ino, os.O_RDONLY, ANYBODY).handle
    assert here.fs.getattr(ino).attributes is WATCHED
    (here.lower / "dir/one").rename(here.lower.parent / "outside")
    assert here.fs.getattr(ino).attributes is BRIEFLY
    here.fs.release(handle)


# Limits


def test_a_listing_lasts_unless_the_host_did_something_to_names_meanwhile(make: Make) -> None:
    here = make()
    handle = here.listed("dir")
    assert here.fs.listing_lasts(handle)
    (here.lower / "dir/one").write_text("other text")
    here.noticed()
    assert here.fs.listing_lasts(handle)
    (here.lower / "dir/new").touch()
    assert not here.fs.listing_lasts(handle), "its time tells before any event is read"
    assert here.fs.listing_lasts(here.listed("dir"))


@pytest.mark.parametrize("deed", ["made", "removed", "renamed"])
def test_a_listing_does_not_last_whatever_time_the_host_gives_its_directory(make: Make, deed: str) -> None:
    here = make()
    one = here.lower / "dir/one"
    before = (here.lower / "dir").stat()
    handle = here.listed("dir")
    if deed == "made":
        one.with_name("new").touch()
    elif deed == "removed":
        one.unlink()
    else:
        one.rename(one.with_name("new"))
    os.utime(here.lower / "dir", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert here.ino("dir") in here.noticed().inodes
    assert not here.fs.listing_lasts(handle)


def test_the_listing_of_a_merged_directory_lasts_until_the_host_changes_it(make: Make) -> None:
    here = make()
    directory = here.ino("dir")
    here.fs.mknod(directory, b"ours", 0o100644, 0, ANYBODY)
    here.references[here.ino("dir/ours")] += 1
    handle = here.listed("dir")
    assert here.fs.listing_lasts(handle)
    (here.lower / "dir/new").touch()
    outdated = here.noticed()
    # Who is told of a name is told of the listing, too.
    assert directory in {parent for parent, _ in outdated.removed | outdated.expired}
    assert not here.fs.listing_lasts(handle)


def test_the_listing_of_what_the_sandbox_made_lasts(make: Make) -> None:
    here = make(watches=0)
    made = here.fs.mkdir(ROOT_INODE, b"made", 0o755, ANYBODY)
    here.references[made.ino] = 1
    assert here.fs.listing_lasts(here.listed("made"))


def test_no_listing_lasts_where_nothing_is_watched_or_nothing_is_left(make: Make) -> None:
    here = make(watches=0)
    assert not here.fs.listing_lasts(here.listed("dir"))
    handle = here.listed("other")
    here.fs.rmdir(ROOT_INODE, b"other")
    assert not here.fs.listing_lasts(handle)


def test_no_listing_lasts_when_events_were_lost(make: Make) -> None:
    here = make()
    handle = here.listed("dir")
    here.fs.suspect_all()
    assert not here.fs.listing_lasts(handle)
    assert here.ino("dir") in here.told().inodes


def test_there_are_no_more_watches_than_allowed_and_answers_beyond_are_brief(make: Make) -> None:
    here = make(watches=1)
    assert here.look("file").name is LONG
    assert here.look("dir/one").name is BRIEFLY
    assert here.watches == 1


def test_a_watch_that_is_given_back_can_be_had_by_another(make: Make) -> None:
    here = make(watches=2)
    here.look("dir/one")
    assert here.look("dir/sub/deep").name is BRIEFLY
    here.forget()
    assert here.watches == 1
    here.list("other")
    assert here.watches == 2


def test_all_watches_but_that_of_the_root_go_with_what_the_kernel_forgets(make: Make) -> None:
    here = make()
    here.list("dir/sub")
    here.list("dir")
    assert here.watches == 3
    here.forget()
    assert here.watches == 1


def test_a_system_without_watches_is_not_asked_again_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make()
    asked = []

    def none_left(_: Inotify, directory: HostDir) -> int:
        asked.append(directory)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Inotify, "add", none_left)
    for _ in range(3):
        assert here.look("dir/one").name is BRIEFLY
    assert len(asked) == 1
    monkeypatch.undo()
    monkeypatch.setattr("sandboxfs.overlay.host_changes.time.monotonic", lambda: 1e12)
    assert here.look("dir/one").name is LONG


def test_a_user_without_a_queue_gets_brief_answers(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(_: Inotify) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Inotify, "__init__", none_left)
    here = make()
    assert here.look("dir/one").name is BRIEFLY


def test_a_filesystem_that_reports_nothing_gets_brief_answers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inotify, "reports_changes", lambda directory: False)
    here = make()
    assert here.look("dir/one").name is BRIEFLY
    assert here.watches == 0


# What the host does


def test_nothing_is_outdated_where_nothing_happened(make: Make) -> None:
    here = make()
    here.list("dir")
    here.look("file")
    assert here.noticed() == Invalidation()


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda path: path.write_text("new"),
    "cut": lambda path: os.truncate(path, 0),
    "chmod": lambda path: path.chmod(0o600),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_file_is_outdated_and_its_name_is_not(make: Make, how: str) -> None:
    here = make()
    ino = here.ino("dir/one")
    CHANGES[how](here.lower / "dir/one")
    assert here.noticed() == Invalidation(inodes={ino})


@pytest.mark.parametrize("name", [b"new", b"new\nline", b"\xff\xfe"])
def test_a_name_that_appears_is_outdated_and_so_is_its_directory(make: Make, name: bytes) -> None:
    here = make()
    directory = here.ino("dir")
    assert here.fs.lookup(directory, name) is None
    os.mkdir(os.path.join(os.fsencode(here.lower / "dir"), name))
    assert here.noticed() == Invalidation(inodes={directory}, removed={(directory, name)})


def test_a_name_that_goes_is_removed(make: Make) -> None:
    here = make()
    directory, _ = here.ino("dir"), here.ino("dir/one")
    (here.lower / "dir/one").unlink()
    assert here.noticed() == Invalidation(inodes={directory}, removed={(directory, b"one")})


def test_an_open_file_that_loses_its_name_is_outdated(make: Make) -> None:
    here = make()
    directory, ino = here.ino("dir"), here.ino("dir/one")
    handle = here.fs.open(ino, os.O_RDONLY, ANYBODY).handle
    (here.lower / "dir/one").unlink()
    assert here.noticed() == Invalidation(inodes={directory, ino}, removed={(directory, b"one")})
    assert here.fs.getattr(ino).nlink == 0
    here.fs.release(handle)


def test_a_name_that_leads_to_another_file_is_removed(make: Make) -> None:
    here = make()
    directory, ino = here.ino("dir"), here.ino("dir/one")
    (here.lower / "dir/saving").write_text("new")
    (here.lower / "dir/saving").rename(here.lower / "dir/one")
    noticed = here.noticed()
    assert (directory, b"one") in noticed.removed
    assert here.ino("dir/one") != ino


def test_a_new_file_with_the_number_of_one_that_is_no_more_is_not_taken_for_that_one(make: Make) -> None:
    """Otherwise an unfinished draft would be shown under the name that the kernel knows the number by."""
    here = make()
    known = here.look("file")
    (here.lower / "aside").write_text("other")
    (here.lower / "aside").replace(here.lower / "file")
    for attempt in range(100):
        draft = here.lower / f"draft{attempt}"
        draft.write_text("dra")
        if draft.stat().st_ino == known.stat.st_ino:
            break
    else:
        pytest.skip("this filesystem does not use numbers again at once")
    here.noticed()
    assert [name for _, name in here.fs.places(known.ino)] == [b"file"]
    draft.replace(here.lower / "file")
    here.noticed()
    assert here.fs.getattr(known.ino).stat.st_size == 3


def test_a_file_that_the_host_moves_is_reached_by_its_new_name(make: Make) -> None:
    here = make()
    directory, other, ino = here.ino("dir"), here.ino("other"), here.ino("dir/one")
    here.list("other")
    (here.lower / "dir/one").rename(here.lower / "other/moved")
    noticed = here.noticed()
    assert {(directory, b"one"), (other, b"moved")} <= noticed.removed
    assert here.fs.getattr(ino).stat.st_size == 1
    assert here.ino("other/moved") == ino


def test_a_name_found_to_have_moved_before_any_event_came_is_outdated(make: Make) -> None:
    here = make()
    directory, _ = here.ino("dir"), here.ino("dir/one")
    (here.lower / "dir/one").rename(here.lower / "dir/moved")
    rung: list[None] = []
    here.noticing.tell(lambda: rung.append(None))
    here.ino("dir/moved")
    assert rung
    assert (directory, b"one") in here.told().expired


def test_a_directory_that_the_host_moves_is_followed(make: Make) -> None:
    here = make()
    here.ino("dir/sub/deep")
    sub = here.ino("dir/sub")
    (here.lower / "dir").rename(here.lower / "moved")
    assert (ROOT_INODE, b"dir") in here.noticed().removed
    assert here.ino("moved/sub") == sub
    here.list("moved/sub")
    (here.lower / "moved/sub/new").touch()
    assert (sub, b"new") in here.noticed().removed


def test_a_directory_that_is_gone_is_watched_no_more(make: Make) -> None:
    here = make()
    other = here.ino("other")
    here.list("other")
    assert here.watches == 2
    # Nobody holds it open, so that its inode goes with its name.
    here.fs._merge.fds.close()
    (here.lower / "other").rmdir()
    noticed = here.noticed()
    assert (ROOT_INODE, b"other") in noticed.removed
    assert other in noticed.inodes
    assert here.watches == 1


def test_a_directory_that_the_view_moved_is_still_followed(make: Make) -> None:
    here = make()
    sub = here.ino("dir/sub")
    here.list("dir/sub")
    here.fs.rename(here.ino("dir"), b"sub", ROOT_INODE, b"moved", 0)
    assert here.look("moved/deep").name is LONG
    (here.lower / "dir/sub/new").touch()
    assert (sub, b"new") in here.noticed().removed
    assert here.look("moved/new").name is LONG


def test_a_copied_up_directory_is_still_followed(make: Make) -> None:
    here = make()
    directory = here.ino("dir")
    here.fs.setattr(directory, AttributeChange(mode=0o700), None, ANYBODY)
    assert here.fs.lookup(directory, b"new") is None
    assert here.fs.absence_lasts(directory)
    (here.lower / "dir/new").touch()
    assert here.noticed() == Invalidation(removed={(directory, b"new")})


def test_a_merged_directory_whose_lower_is_replaced_is_asked_for_again_with_all_in_it(make: Make) -> None:
    here = make()
    directory, one = here.ino("dir"), here.ino("dir/one")
    here.fs.setattr(directory, AttributeChange(mode=0o700), None, ANYBODY)
    assert here.fs.lookup(directory, b"absent") is None
    (here.lower / "dir").rename(here.lower / "away")
    (here.lower / "dir").mkdir()
    (here.lower / "dir/absent").write_text("there now")
    noticed = here.noticed()
    assert {(directory, b"one"), (directory, b"absent")} <= noticed.expired | noticed.removed
    assert {directory, one} <= noticed.inodes
    assert here.look("dir/absent").name is LONG
    assert here.fs.lookup(directory, b"one") is None


def test_a_change_of_a_file_that_the_sandbox_has_copied_leaves_the_name_alone(make: Make) -> None:
    here = make()
    ino = here.ino("dir/one")
    here.fs.setattr(ino, AttributeChange(mode=0o600), None, ANYBODY)
    (here.lower / "dir/one").unlink()
    noticed = here.noticed()
    assert noticed.removed == set()
    assert here.ino("dir/one") == ino


def test_a_second_name_that_the_host_gives_is_found_out(make: Make) -> None:
    here = make()
    ino = here.ino("dir/one")
    assert here.look("dir/one").attributes is WATCHED
    os.link(here.lower / "dir/one", here.lower / "second")
    assert ino in here.noticed().inodes
    assert here.look("dir/one").attributes is BRIEFLY


def test_names_that_must_not_be_asked_for_are_passed_over(make: Make) -> None:
    here = make({"state/secret": "", "file": ""}, hidden=[Path("state")])
    here.look("file")
    (here.lower / "state").chmod(0o700)
    assert here.noticed() == Invalidation()


# Lost events


def overflow(_: Inotify) -> list[Event]:
    return [Event(-1, inotify.OVERFLOW, b"")]


def test_when_events_were_lost_everything_watched_is_asked_for_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make()
    known = {path: here.ino(path) for path in ("", "file", "dir", "dir/one", "dir/sub", "dir/sub/deep")}
    assert here.fs.lookup(known["dir"], b"absent") is None
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "read", overflow)
        assert here.noticing.gather()
    told = here.told()
    assert told.inodes == set(known.values())
    assert told.expired == {
        (ROOT_INODE, b"file"),
        (ROOT_INODE, b"dir"),
        (known["dir"], b"one"),
        (known["dir"], b"sub"),
        (known["dir"], b"absent"),
        (known["dir/sub"], b"deep"),
    }
    assert here.told() == Invalidation()


def test_what_is_not_watched_is_not_asked_for_again_when_events_were_lost(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make(watches=1)
    here.ino("dir/one")
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "read", overflow)
        here.noticing.gather()
    assert here.told().expired == {(ROOT_INODE, b"dir")}


def test_many_events_are_told_in_small_parts(make: Make) -> None:
    here = make()
    directory = here.ino("other")
    here.list("other")
    for number in range(50):
        (here.lower / f"other/{number}").touch()
    while here.noticing.gather():
        pass
    parts = [part.outdated for part in here.noticing.noticed(10)]
    assert [len(part.removed) for part in parts] == [10] * 5
    assert {place for part in parts for place in part.removed} == {
        (directory, b"%d" % number) for number in range(50)
    }
