"""Upper writer: carries out edits so that the view is right at every moment.

Each operation of `edits` takes effect by one rename, exchange or mark; all other steps come before, where
the view does not show them, or after. After a kill the operation is repeated: steps that were done are
recognised. Times of directories stay: no program asked for this change. Only the process that holds the
sandbox's lock may edit an upper.

When an entry leaves the upper, its baseline entry is suspended: an entry made at that path later starts from
the workspace's object of then. When the entry comes back, so does its baseline entry. The baseline is
changed only after the upper, and only by the process that changed it: a kill in between leaves no entry
without its baseline.
"""

import errno
import os
import stat

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.hostfs.syscalls import RENAME_NOREPLACE
from sandboxfs.paths import joined
from sandboxfs.upper import marks
from sandboxfs.upper.baseline_log import read_alone
from sandboxfs.upper.directory_marks import DirectoryMarker
from sandboxfs.upper.edits import (
    ABSENT,
    BUSY,
    CHANGED,
    DONE,
    WHITEOUT,
    EditOutcome,
    FollowMove,
    Operation,
    Prune,
    Rebase,
    Rehide,
    RemoveEntry,
    RestoreEntry,
    Resume,
    SetAttributes,
    UnfollowMove,
    Unhide,
    UpperIdentity,
    Whiteout,
    entered_by,
    refused,
)
from sandboxfs.upper.removed import EntryRestorer, RemovedEntries, redress
from sandboxfs.upper.unmounted import NOWHERE, UnmountedUpper


class BaselineAside:
    """Suspends baseline entries of one upper's entries, by their path in the view."""

    def __init__(self, tree: UnmountedUpper) -> None:
        self._tree = tree
        # The lower paths of directories.
        self._lowers: dict[bytes, bytes | None] = {}

    def look_again(self) -> None:
        """Forget all lower paths: directories may have come, gone or got other marks."""
        self._lowers.clear()

    def changed(self, path: bytes) -> None:
        """Note that an entry came to *path*, or went: only *path* and paths below may have other marks."""
        if path in self._lowers:
            before = self._lowers.pop(path)
            self._tree.find_lowers(path, self._lowers)
            if self._lowers[path] != before:
                self._lowers.clear()

    def suspended(self, path: bytes, *, whole: bool = False) -> None:
        """The upper has no entry at *path* any more; as a *whole*, nor elsewhere any of its content."""
        lower = self._natural(path)
        if self._tree.baseline is not None and lower is not None:
            self._tree.baseline.suspended(lower, whole=whole)

    def returned(self, path: bytes, *, whole: bool = False) -> None:
        """The former entry of *path* is there again."""
        lower = self._natural(path)
        if self._tree.baseline is not None and lower is not None:
            self._tree.baseline.returned(lower, whole=whole)

    def lower_of(self, path: bytes) -> bytes | None:
        """The lower path of the directory at *path*."""
        if path not in self._lowers:
            self._tree.find_lowers(path, self._lowers)
        return self._lowers[path]

    def _natural(self, path: bytes) -> bytes | None:
        """The lower path that the entry at *path* has by its name."""
        folder, _, name = path.rpartition(b"/")
        lower = self.lower_of(folder)
        return None if lower is None else joined(lower, name)


class UpperWriter:
    """Edits one upper. *commits* is the directory of all records; both are the caller's to close."""

    def __init__(self, tree: UnmountedUpper, commits: HostDir) -> None:
        self._tree = tree
        self._commits = commits
        self._opening = DirectoryMarker(tree)
        self._returning = EntryRestorer(tree)
        self._kept: RemovedEntries | None = None
        self._aside = BaselineAside(tree)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def use(self, record: int) -> None:
        """Edit for this record from now on; FileNotFoundError when there is none of that number."""
        self._aside.look_again()
        if self._kept is None or self._kept.record != record:
            kept = RemovedEntries(self._commits, record, self._tree.staging)
            self.close()
            self._kept = kept

    def lower_of(self, path: bytes) -> bytes | None:
        """The lower path of the directory at *path*, as it is since `use`."""
        return self._aside.lower_of(path)

    def edit(self, operation: Operation) -> EditOutcome:
        """Do one operation, or say why not."""
        kept = self._kept
        if kept is None:
            raise ValueError("no record is in use")
        try:
            try:
                return self._do(kept, operation)
            except PermissionError:
                with self._tree.accessible(*entered_by(operation)):
                    return self._do(kept, operation)
        except OSError as error:
            self._aside.look_again()
            return refused(ABSENT if error.errno in NOWHERE else error.strerror or str(error))

    def _do(self, kept: RemovedEntries, operation: Operation) -> EditOutcome:
        if not isinstance(operation, RemoveEntry | Prune | RestoreEntry):
            self._aside.look_again()
        match operation:
            case RemoveEntry():
                outcome = self._drop(kept, operation)
                self._count_again(operation.path)
                return outcome
            case Prune():
                outcome = self._prune(kept, operation)
                self._aside.changed(operation.path)
                self._count_again(operation.path)
                return outcome
            case RestoreEntry():
                outcome = self._returning.put(kept, operation)
                self._aside.changed(operation.path)
                if outcome.done:
                    self._aside.returned(operation.path)
                return outcome
            case Whiteout():
                return self._whiteout(operation)
            case Rebase():
                return self._rebase(operation)
            case Resume():
                return self._resume(kept, operation)
            case SetAttributes():
                return redress(self._tree, kept, operation)
            case _:
                return self._mark(kept, operation)

    def _mark(
        self, kept: RemovedEntries, operation: Unhide | Rehide | FollowMove | UnfollowMove
    ) -> EditOutcome:
        """Change the marks of directories."""
        match operation:
            case Unhide():
                return self._opening.open(kept, operation)
            case Rehide():
                return self._opening.close(kept, operation)
            case FollowMove():
                return self._opening.moved(kept, operation)
            case UnfollowMove():
                return self._opening.unmoved(kept, operation)

    # Removing

    def _drop(self, kept: RemovedEntries, drop: RemoveEntry) -> EditOutcome:
        if drop.expect == WHITEOUT:
            return self._uncover(drop)
        earlier = kept.stat(drop.keep)
        if earlier is not None:
            if earlier.st_ino != drop.expect.ino:
                return refused(os.strerror(errno.EEXIST))
            self._unindex(kept, drop.keep, earlier)
            return DONE
        with self._tree.place(drop.path) as place:
            if place.directory is not None and place.status is not None:
                outcome = self._take(kept, place.directory, place.name, place.status, drop.expect, drop.keep)
                if outcome.done:
                    self._aside.suspended(drop.path)
                return outcome
        if drop.number is None:
            return refused(ABSENT)
        # The upper has none of its names: the view shows the other names from the index alone.
        index = self._tree.index
        link = index.link_name(drop.number)
        status = index.directory.stat(link)
        if status is None:
            return refused(ABSENT)
        return self._take(kept, index.directory, link, status, drop.expect, drop.keep)

    def _uncover(self, drop: RemoveEntry) -> EditOutcome:
        with self._tree.place(drop.path) as place:
            directory = place.directory
            if directory is None or place.status is None:
                return DONE
            if not self._tree.covers(place):
                return refused(CHANGED)
            if drop.number is not None:
                # First: a repetition shows too many links, which does no harm; too few could.
                self._tree.index.regain_name(drop.number)
                self._count(drop.number, +1)
            directory.quietly(lambda: directory.unlink(place.name))
        self._aside.suspended(drop.path, whole=drop.whole)
        return DONE

    def _take(
        self,
        kept: RemovedEntries,
        directory: HostDir,
        name: bytes,
        status: os.stat_result,
        expect: UpperIdentity,
        keep: bytes,
    ) -> EditOutcome:
        """Move the expected entry at *name* to the record."""
        if not kept.expects(status, expect):
            return refused(CHANGED)
        if stat.S_ISDIR(status.st_mode):
            return refused(os.strerror(errno.EISDIR))
        directory.quietly(lambda: directory.rename(name, kept.directory, keep, RENAME_NOREPLACE))
        kept.came(status.st_ino)
        # Only now: until then, the index shows the file under the name that the upper no longer has.
        self._unindex(kept, keep, status)
        return DONE

    def _unindex(self, kept: RemovedEntries, keep: bytes, status: os.stat_result) -> None:
        """Drop the index entry of a kept file with the last of its names: all names show the lower file."""
        if not stat.S_ISREG(status.st_mode):
            return
        record = marks.read_record(kept.directory, keep)
        index = self._tree.index
        if record.nlink == 0 or not index.has_link(record.ino):
            return
        link = index.directory.stat(index.link_name(record.ino))
        if link is not None and link.st_ino == status.st_ino and not kept.names_left(link):
            index.drop_link(record.ino)

    def _prune(self, kept: RemovedEntries, prune: Prune) -> EditOutcome:
        if kept.stat(prune.keep) is not None:
            return DONE
        with self._tree.place(prune.path) as place:
            directory, name = place.directory, place.name
            if directory is None or place.status is None:
                return refused(ABSENT)
            if not place.is_dir:
                return refused(CHANGED)
            with directory.child(name) as inner:
                if not prune.whole and not inner.is_empty():
                    return refused(BUSY)
            directory.quietly(lambda: directory.rename(name, kept.directory, prune.keep, RENAME_NOREPLACE))
        self._aside.suspended(prune.path)
        return DONE

    # Hiding

    def _whiteout(self, whiteout: Whiteout) -> EditOutcome:
        self._tree.make(os.path.dirname(whiteout.path))
        with self._tree.place(whiteout.path) as place:
            if place.directory is None:
                return refused(ABSENT)
            if place.status is not None:
                return DONE if self._tree.covers(place) else refused(CHANGED)
            self._tree.cover(place.directory, place.name)
        self._aside.returned(whiteout.path, whole=True)
        if whiteout.number is not None and not self._count(whiteout.number, -1):
            self._tree.index.lose_name(whiteout.number)
        return DONE

    def _count(self, number: int, change: int) -> bool:
        """Count a name of an indexed lower file; False when it is not indexed."""
        index = self._tree.index
        if not index.has_link(number):
            return False
        link = index.link_name(number)
        nlink = marks.read_record(index.directory, link).nlink + change
        # Never none: a count of none means a file that is not indexed.
        marks.write_record(index.directory, link, marks.InodeRecord(number, max(nlink, 1)))
        return True

    def _count_again(self, path: bytes) -> None:
        """Reset the counts of names taken away when the upper is empty and hides nothing.

        A whiteout over a directory does not say which hard links went with it.
        """
        if b"/" not in path and self._tree.upper.is_empty():
            self._tree.index.regain_all_names()

    # Baselines

    def _rebase(self, rebase: Rebase) -> EditOutcome:
        if self._tree.baseline is None:
            return DONE
        folder, name = os.path.split(rebase.lower)
        try:
            source = self._tree.workspace.descend(folder)
        except OSError as error:
            if error.errno not in NOWHERE:
                raise
            self._tree.baseline.forget(rebase.lower)
            return DONE
        with source:
            status = source.stat(name or b".")
            if status is None:
                self._tree.baseline.forget(rebase.lower)
                return DONE
            own = self._tree.lower_number(status)
            number = own if rebase.own and own else self._shown_number(rebase.path, status) or own
            self._tree.baseline.note(
                rebase.lower, source, name or b".", status, number, keep=True, marked=rebase.marked
            )
        return DONE

    def _resume(self, kept: RemovedEntries, resume: Resume) -> EditOutcome:
        if self._tree.baseline is None:
            return DONE
        entry, content = read_alone(kept.directory, resume.keep)
        if entry is None:
            # Without a baseline entry the change is a conflict.
            self._tree.baseline.forget(resume.lower)
        else:
            self._tree.baseline.resume(resume.lower, entry, content)
        return DONE

    def _shown_number(self, path: bytes, lower: os.stat_result) -> int:
        """The number that the upper's entry at *path* has in the view, if that is written down.

        An entry of another type than the *lower* object has another number.
        """
        if not path:
            return marks.read_directory(self._tree.upper, b"").ino
        with self._tree.place(path) as place:
            if place.directory is None or place.status is None or self._tree.covers(place):
                return 0
            if stat.S_IFMT(place.status.st_mode) != stat.S_IFMT(lower.st_mode):
                return 0
            if place.is_dir:
                return marks.read_directory(place.directory, place.name).ino
            if place.is_file:
                return marks.read_record(place.directory, place.name).ino
            return self._tree.index.number(place.status.st_ino)
