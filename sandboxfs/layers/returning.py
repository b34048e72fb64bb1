"""How does something that was kept come back into the upper?

By one rename where the upper has nothing or a whiteout, by an exchange where it has the entry that is to be
replaced, which is kept in turn. A file that stands for a lower file of several names gets its index entry
before its name, and is replaced through the index: all its names show the other one at the same moment.
"""

import os
import stat

from sandboxfs.layers import marks
from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.kept import Kept
from sandboxfs.layers.settlement import ABSENT, BUSY, CHANGED, DONE, Identity, Outcome, Put, refused
from sandboxfs.layers.syscalls import RENAME_EXCHANGE, RENAME_NOREPLACE
from sandboxfs.layers.uppertree import Place, UpperTree

_OLD = b".old"


class Returning:
    """Puts kept entries back."""

    def __init__(self, tree: UpperTree) -> None:
        self._tree = tree
        self._index = tree.index

    def put(self, kept: Kept, put: Put) -> Outcome:
        source = kept.stat(put.keep)
        if source is None:
            return self._put_before(put)
        if self._exchanged(kept, put, source):
            return DONE
        with self._tree.place(put.path) as place:
            why = self._objection(kept, put, place)
            if why is not None:
                return refused(why)
        self._tree.make(os.path.dirname(put.path))
        with self._tree.place(put.path) as place:
            if place.directory is None:
                return refused(ABSENT)
            if self._record(place).nlink or self._resumes(kept, put):
                self._replace_indexed(kept, put, source, place.directory, place.name)
            elif self._dressed(kept, put, source, place):
                self._bring(kept, put, source, place.directory, place)
            else:
                return refused(CHANGED)
        return DONE

    def _put_before(self, put: Put) -> Outcome:
        """Nothing is kept under that name: it has been put back, if anything is there."""
        with self._tree.place(put.path) as place:
            there = place.status is not None and not self._tree.covers(place)
        return DONE if there else refused(ABSENT)

    def _exchanged(self, kept: Kept, put: Put, source: os.stat_result) -> bool:
        """Whether what lies under the kept name was exchanged with it already; puts that away."""
        if self._tree.whiteouts.covers(kept.directory, put.keep, source):
            kept.directory.unlink(put.keep)
            return True
        if isinstance(put.expect, Identity) and source.st_ino == put.expect.ino:
            kept.directory.rename(put.keep, kept.directory, put.keep + _OLD, RENAME_NOREPLACE)
            return True
        return False

    def _objection(self, kept: Kept, put: Put, place: Place) -> str | None:
        """Why what is there must not be replaced."""
        covered = self._tree.covers(place)
        if not isinstance(put.expect, Identity):
            expected = covered or (put.expect is None and place.status is None)
            return None if expected else CHANGED
        if place.status is None:
            return None if self._resumes(kept, put) else CHANGED
        if covered or not kept.expects(place.status, put.expect):
            return CHANGED
        return BUSY if self._in_use(kept, place) else None

    def _in_use(self, kept: Kept, place: Place) -> bool:
        """Whether more than the one name hangs on an entry: what is in a directory, other names of a file."""
        if place.directory is None:
            return False
        if place.is_dir:
            with place.directory.child(place.name) as inner:
                return not inner.is_empty()
        record = self._record(place)
        link = self._index.directory.stat(self._index.link_name(record.ino)) if record.nlink else None
        return link is not None and kept.names_left(link) > 1

    def _record(self, place: Place) -> marks.Record:
        if place.directory is None or not place.is_file or self._tree.covers(place):
            return marks.NO_RECORD
        return marks.read_record(place.directory, place.name)

    def _dressed(self, kept: Kept, put: Put, source: os.stat_result, place: Place) -> bool:
        """Give a regular file its number and index entry before it appears; whether that can be."""
        if not stat.S_ISREG(source.st_mode):
            return True
        record = marks.read_record(kept.directory, put.keep)
        if not record.ino and (replaced := self._record(place)).ino:
            # What takes a file's place is the same file to programs.
            marks.write_record(kept.directory, put.keep, replaced)
        if record.nlink == 0:
            return True
        if put.number is not None and put.number != record.ino:
            record = marks.Record(put.number, record.nlink)
            marks.write_record(kept.directory, put.keep, record)
        link = self._index.directory.stat(self._index.link_name(record.ino))
        if link is None:
            self._index.add_link(record.ino, kept.directory, put.keep)
        return link is None or link.st_ino == source.st_ino

    def _bring(self, kept: Kept, put: Put, source: os.stat_result, directory: HostDir, place: Place) -> None:
        """The change itself: one rename, or an exchange whose other half is put away."""
        exchanges = place.status is not None
        if self._tree.covers(place) and not stat.S_ISDIR(source.st_mode):
            directory.quietly(lambda: kept.directory.rename(put.keep, directory, place.name))
        else:
            flags = RENAME_EXCHANGE if exchanges else RENAME_NOREPLACE
            directory.quietly(lambda: kept.directory.rename(put.keep, directory, place.name, flags))
            if place.status is not None:
                self._exchanged(kept, put, place.status)
                kept.came(place.status.st_ino)
        kept.came(source.st_ino, -1)

    # A file in place of one that is indexed

    def _resumes(self, kept: Kept, put: Put) -> bool:
        """Whether an earlier attempt has put the indexed entry away."""
        if not isinstance(put.expect, Identity):
            return False
        old = kept.stat(put.keep + _OLD)
        return old is not None and old.st_ino == put.expect.ino

    def _replace_indexed(
        self, kept: Kept, put: Put, source: os.stat_result, directory: HostDir, name: bytes
    ) -> None:
        old = put.keep + _OLD
        if not self._resumes(kept, put):
            # Without its name the index goes on showing it.
            directory.quietly(lambda: directory.rename(name, kept.directory, old, RENAME_NOREPLACE))
            kept.came(put.expect.ino if isinstance(put.expect, Identity) else 0)
        record = marks.read_record(kept.directory, old)
        if stat.S_ISREG(source.st_mode):
            marks.write_record(kept.directory, put.keep, record)
            self._index.replace_link(record.ino, kept.directory, put.keep)
        else:
            self._index.drop_link(record.ino)
        directory.quietly(lambda: kept.directory.rename(put.keep, directory, name, RENAME_NOREPLACE))
        kept.came(source.st_ino, -1)
