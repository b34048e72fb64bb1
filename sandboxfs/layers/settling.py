"""How do changes leave an upper, and come back, so that the view is right at every moment?

Each operation of `settlement` is brought about by one rename, exchange or mark; what else it takes comes
before where it cannot be seen, or after. Whoever is killed in between does the operation again: steps that
were done are seen to be done. Times of directories stay: no program asked for this. Only the process that
holds the sandbox's lock may settle.
"""

import errno
import os
import stat

from sandboxfs.layers import marks
from sandboxfs.layers.aside import Aside
from sandboxfs.layers.baseline_copy import read_alone
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.kept import Kept
from sandboxfs.layers.opening import Opening
from sandboxfs.layers.redressing import redress
from sandboxfs.layers.returning import Returning
from sandboxfs.layers.settlement import (
    ABSENT,
    BUSY,
    CHANGED,
    DONE,
    WHITEOUT,
    Close,
    Drop,
    Identity,
    Moved,
    Open,
    Operation,
    Outcome,
    Prune,
    Put,
    Rebase,
    Redress,
    Resume,
    Unmoved,
    Whiteout,
    paths_of,
    refused,
)
from sandboxfs.layers.syscalls import RENAME_NOREPLACE
from sandboxfs.layers.uppertree import NOWHERE, UpperTree


class Settling:
    """Settles one upper. *commits* is the directory of all records; both are the caller's to close."""

    def __init__(self, tree: UpperTree, commits: HostDir) -> None:
        self._tree = tree
        self._commits = commits
        self._opening = Opening(tree)
        self._returning = Returning(tree)
        self._kept: Kept | None = None
        self._aside = Aside(tree)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def use(self, record: int) -> None:
        """Settle for this record from now on; FileNotFoundError when there is none of that number."""
        self._aside.look_again()
        if self._kept is None or self._kept.record != record:
            kept = Kept(self._commits, record, self._tree.staging)
            self.close()
            self._kept = kept

    def settle(self, operation: Operation) -> Outcome:
        """Do one operation, or say why not."""
        kept = self._kept
        if kept is None:
            raise ValueError("no record is in use")
        try:
            try:
                return self._do(kept, operation)
            except PermissionError:
                with self._tree.accessible(*paths_of(operation)):
                    return self._do(kept, operation)
        except OSError as error:
            return refused(ABSENT if error.errno in NOWHERE else error.strerror or str(error))

    def _do(self, kept: Kept, operation: Operation) -> Outcome:
        if not isinstance(operation, Drop):
            self._aside.look_again()
        match operation:
            case Drop():
                outcome = self._drop(kept, operation)
                self._count_again(operation.path)
                return outcome
            case Prune():
                outcome = self._prune(kept, operation)
                self._count_again(operation.path)
                return outcome
            case Put():
                outcome = self._returning.put(kept, operation)
                if outcome.done:
                    self._aside.returned(operation.path)
                return outcome
            case Whiteout():
                return self._whiteout(operation)
            case Rebase():
                return self._rebase(operation)
            case Resume():
                return self._resume(kept, operation)
            case Redress():
                return redress(self._tree, kept, operation)
            case _:
                return self._mark(kept, operation)

    def _mark(self, kept: Kept, operation: Open | Close | Moved | Unmoved) -> Outcome:
        """Change the marks of directories."""
        match operation:
            case Open():
                return self._opening.open(kept, operation)
            case Close():
                return self._opening.close(kept, operation)
            case Moved():
                return self._opening.moved(kept, operation)
            case Unmoved():
                return self._opening.unmoved(kept, operation)

    # Leaving

    def _drop(self, kept: Kept, drop: Drop) -> Outcome:
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
                    self._aside.settled(drop.path)
                return outcome
        if drop.number is None:
            return refused(ABSENT)
        # The upper has none of its names: what the view shows under the others is the index's alone.
        index = self._tree.index
        link = index.link_name(drop.number)
        status = index.directory.stat(link)
        if status is None:
            return refused(ABSENT)
        return self._take(kept, index.directory, link, status, drop.expect, drop.keep)

    def _uncover(self, drop: Drop) -> Outcome:
        with self._tree.place(drop.path) as place:
            directory = place.directory
            if directory is None or place.status is None:
                return DONE
            if not self._tree.covers(place):
                return refused(CHANGED)
            if drop.number is not None:
                # First: done twice it shows too many links, which does no harm; too few could.
                self._tree.index.regain_name(drop.number)
                self._count(drop.number, +1)
            directory.quietly(lambda: directory.unlink(place.name))
        self._aside.settled(drop.path, whole=drop.whole)
        return DONE

    def _take(
        self,
        kept: Kept,
        directory: HostDir,
        name: bytes,
        status: os.stat_result,
        expect: Identity,
        keep: bytes,
    ) -> Outcome:
        """Move what is expected at *name* to where it is kept."""
        if not kept.expects(status, expect):
            return refused(CHANGED)
        if stat.S_ISDIR(status.st_mode):
            return refused(os.strerror(errno.EISDIR))
        directory.quietly(lambda: directory.rename(name, kept.directory, keep, RENAME_NOREPLACE))
        kept.came(status.st_ino)
        # Only now: until it goes, the index shows the same under the name that the upper no longer has.
        self._unindex(kept, keep, status)
        return DONE

    def _unindex(self, kept: Kept, keep: bytes, status: os.stat_result) -> None:
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

    def _prune(self, kept: Kept, prune: Prune) -> Outcome:
        if kept.stat(prune.keep) is not None:
            return DONE
        with self._tree.place(prune.path) as place:
            directory, name = place.directory, place.name
            if directory is None or place.status is None:
                return refused(ABSENT)
            if not place.is_dir:
                return refused(CHANGED)
            with directory.child(name) as inner:
                if not inner.is_empty():
                    return refused(BUSY)
            directory.quietly(lambda: directory.rename(name, kept.directory, prune.keep, RENAME_NOREPLACE))
        self._aside.settled(prune.path)
        return DONE

    # Hiding

    def _whiteout(self, whiteout: Whiteout) -> Outcome:
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
        """Count a name of an indexed lower file; whether it is indexed."""
        index = self._tree.index
        if not index.has_link(number):
            return False
        link = index.link_name(number)
        nlink = marks.read_record(index.directory, link).nlink + change
        # Never none: that would mean a file that is not indexed.
        marks.write_record(index.directory, link, marks.Record(number, max(nlink, 1)))
        return True

    def _count_again(self, path: bytes) -> None:
        """See to it that no name counts as taken away in an upper that hides nothing.

        A whiteout over a directory does not say which hard links went with it.
        """
        if b"/" not in path and self._tree.upper.is_empty():
            self._tree.index.regain_all_names()

    # What it started from

    def _rebase(self, rebase: Rebase) -> Outcome:
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

    def _resume(self, kept: Kept, resume: Resume) -> Outcome:
        if self._tree.baseline is None:
            return DONE
        sighting, content = read_alone(kept.directory, resume.keep)
        if sighting is None:
            # Without any it is a conflict.
            self._tree.baseline.forget(resume.lower)
        else:
            self._tree.baseline.resume(resume.lower, sighting, content)
        return DONE

    def _shown_number(self, path: bytes, lower: os.stat_result) -> int:
        """The number that the upper's entry at *path* has in the view, if that is written down.

        What is of another type than the *lower* object has another's number.
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
