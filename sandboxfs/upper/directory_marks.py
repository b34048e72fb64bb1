"""Marks of an upper directory: removed, so that it is plainly merged, and put back.

The marks of a directory decide which lower names show in it. They are changed in an order that lets the view
change at one moment only: names that must stay hidden get whiteouts before a mark goes, and lose them after a
mark came. The record's notes tell the plan to the process that goes on after a crash.
"""

import os
from collections.abc import Iterable

from sandboxfs.hostfs.directory import HostDir
from sandboxfs.upper import marks
from sandboxfs.upper.edits import (
    ABSENT,
    CHANGED,
    DONE,
    EditOutcome,
    FollowMove,
    Rehide,
    UnfollowMove,
    Unhide,
    UnhideOutcome,
    outcome_from_json,
    outcome_to_json,
    path_bytes,
    refused,
    text,
)
from sandboxfs.upper.removed import RemovedEntries
from sandboxfs.upper.resolve import resolve
from sandboxfs.upper.unmounted import NOWHERE, UnmountedUpper

_OPEN, _MOVED = b"open", b"moved"


class DirectoryMarker:
    """Changes the marks of directories."""

    def __init__(self, tree: UnmountedUpper) -> None:
        self._tree = tree

    def open(self, kept: RemovedEntries, operation: Unhide) -> EditOutcome:
        path = operation.path
        with self._tree.place(path) as place:
            noted, ino = _noted(kept, path)
            if noted is not None and (place.status is None or place.status.st_ino != ino):
                # The operation was done, and the directory was removed or replaced since.
                return EditOutcome(done=True, opened=noted)
            if place.directory is None or place.status is None:
                return refused(ABSENT)
            if not place.is_dir:
                return refused(CHANGED)
            mark = marks.read_directory(place.directory, place.name)
            if noted is None:
                if mark.is_plain:
                    return EditOutcome(done=True, opened=UnhideOutcome())
                noted = self._plan(place.directory, place.name, path, mark)
                described = outcome_to_json(EditOutcome(done=True, opened=noted))
                kept.write_note(_OPEN, path, described | {"ino": place.status.st_ino})
            stays = not noted.opaque and noted.redirect == self._tree.natural(path)
            self._keep_number(place.directory, place.name, place.status, mark)
            self._unmark(place.directory, place.name, noted, mark, stays=stays)
        return EditOutcome(done=True, opened=noted)

    def _plan(self, directory: HostDir, name: bytes, path: bytes, mark: marks.DirMarks) -> UnhideOutcome:
        """The names to be hidden before the marks go."""
        redirect = resolve(mark, self._tree.lower_of(os.path.dirname(path))).redirect
        if redirect is not None and redirect == self._tree.natural(path):
            # The directory moved away and back: its lower content stays the same.
            return UnhideOutcome(opaque=False, redirect=redirect)
        with directory.child(name) as inner:
            entries = dict(_listed(inner))
            closed = [n for n in sorted(entries) if entries[n] and _is_plain_directory(inner, n)]
        whiteouts = sorted(set(self._lower_names(path)) - entries.keys())
        return UnhideOutcome(mark.opaque, redirect, tuple(whiteouts), tuple(closed))

    def _lower_names(self, path: bytes) -> list[bytes]:
        """The names that would be merged in, unexamined."""
        natural = self._tree.natural(path)
        if natural is None:
            return []
        try:
            directory = self._tree.workspace.descend(natural)
        except OSError as error:
            if error.errno in NOWHERE:
                return []
            raise
        with directory:
            return directory.names()

    def _keep_number(
        self, directory: HostDir, name: bytes, status: os.stat_result, mark: marks.DirMarks
    ) -> None:
        """Record the number of a directory that would show its lower directory's number from now on."""
        number = self._tree.upper_number(status)
        if not mark.ino and number and not mark.is_plain:
            marks.write_record(directory, name, marks.InodeRecord(number, 0))

    def _unmark(
        self, directory: HostDir, name: bytes, planned: UnhideOutcome, mark: marks.DirMarks, *, stays: bool
    ) -> None:
        if mark.is_plain:
            return
        if mark.redirect is not None:
            if not stays:
                # From here on nothing of the lower layers shows, as in the final state.
                marks.set_opaque(directory, name)
            marks.clear_redirect(directory, name)
        with directory.child(name) as inner:
            for child in planned.closed:
                if _is_plain_directory(inner, child):
                    marks.set_opaque(inner, child)
            for covered in planned.whiteouts or ():
                if inner.stat(covered) is None:
                    self._tree.cover(inner, covered)
        marks.clear_opaque(directory, name, self._tree.whiteouts)

    def close(self, kept: RemovedEntries, operation: Rehide) -> EditOutcome:
        whiteouts, closed = operation.whiteouts, operation.closed
        if whiteouts is None:
            noted = _noted(kept, operation.path)[0] or UnhideOutcome()
            whiteouts, closed = noted.whiteouts or (), noted.closed
        with self._tree.place(operation.path) as place:
            if place.directory is None or place.status is None:
                return refused(ABSENT)
            if not place.is_dir:
                return refused(CHANGED)
            if operation.opaque:
                marks.set_opaque(place.directory, place.name)
            if operation.redirect is not None:
                marks.set_redirect(place.directory, place.name, operation.redirect)
            if operation.opaque or operation.redirect is not None:
                with place.directory.child(place.name) as inner:
                    self._uncover(inner, whiteouts)
                    for child in closed:
                        marks.clear_opaque(inner, child, self._tree.whiteouts)
        kept.drop_note(_OPEN, operation.path)
        return DONE

    def _uncover(self, directory: HostDir, names: Iterable[bytes]) -> None:
        for name in names:
            status = directory.stat(name)
            if status is not None and self._tree.whiteouts.covers(directory, name, status):
                self._uncover_one(directory, name)

    @staticmethod
    def _uncover_one(directory: HostDir, name: bytes) -> None:
        directory.quietly(lambda: directory.unlink(name))

    # Directories that the workspace moved

    def moved(self, kept: RemovedEntries, operation: FollowMove) -> EditOutcome:
        old, new = operation.old, operation.new
        with self._tree.place(new) as place:
            if place.directory is None or place.status is None:
                return refused(ABSENT)
            natural = self._tree.natural(new)
            lower = self._tree.lower_of(new)
            if not place.is_dir or lower not in (old, new):
                return refused(CHANGED)
            if lower == old:
                self._redirect_others(kept, old, new, besides=new)
                if self._tree.baseline is not None:
                    self._tree.baseline.moved(old, new)
                self._show(old)
                if natural == new:
                    marks.clear_redirect(place.directory, place.name)
                else:
                    marks.set_redirect(place.directory, place.name, new)
        kept.drop_note(_MOVED, new)
        return DONE

    def unmoved(self, kept: RemovedEntries, operation: UnfollowMove) -> EditOutcome:
        old, new = operation.old, operation.new
        with self._tree.place(new) as place:
            if place.directory is None or place.status is None:
                return refused(ABSENT)
            lower = self._tree.lower_of(new)
            if not place.is_dir or lower not in (old, new):
                return refused(CHANGED)
            if lower == new:
                self._redirect_others(kept, new, old, besides=new)
                if self._tree.baseline is not None:
                    self._tree.baseline.moved(new, old)
                marks.set_redirect(place.directory, place.name, old)
        # Last, and whether or not it was done before: in between the directory shows twice rather than never.
        self._hide(old)
        kept.drop_note(_MOVED, new)
        return DONE

    def _redirect_others(self, kept: RemovedEntries, old: bytes, new: bytes, besides: bytes) -> None:
        """Change all other redirects to or below the lower directory *old*, which is now at *new*."""
        noted = kept.note(_MOVED, besides)
        if noted is None:
            others = {
                text(path): text(new + lower[len(old) :])
                for path, lower in self._tree.redirects()
                if path != besides and (lower == old or lower.startswith(old + b"/"))
            }
            noted = {"redirects": others}
            kept.write_note(_MOVED, besides, noted)
        redirects = noted.get("redirects")
        for path, redirect in (redirects if isinstance(redirects, dict) else {}).items():
            with self._tree.place(path_bytes(path)) as place:
                if place.directory is not None and place.is_dir:
                    marks.set_redirect(place.directory, place.name, path_bytes(redirect))

    def _show(self, path: bytes) -> None:
        with self._tree.place(path) as place:
            if place.directory is not None and self._tree.covers(place):
                self._uncover_one(place.directory, place.name)

    def _hide(self, path: bytes) -> None:
        self._tree.make(os.path.dirname(path))
        with self._tree.place(path) as place:
            if place.directory is not None and place.status is None:
                self._tree.cover(place.directory, place.name)


def _noted(kept: RemovedEntries, path: bytes) -> tuple[UnhideOutcome | None, int]:
    """The plan of an earlier attempt to unhide a directory, and the directory's inode."""
    note = kept.note(_OPEN, path)
    if note is None:
        return None, 0
    ino = note.get("ino")
    return outcome_from_json(note).opened, ino if isinstance(ino, int) else 0


def _listed(directory: HostDir) -> Iterable[tuple[bytes, bool]]:
    return ((os.fsencode(e.name), e.is_dir(follow_symlinks=False)) for e in directory.entries())


def _is_plain_directory(directory: HostDir, name: bytes) -> bool:
    try:
        return marks.read_directory(directory, name).is_plain
    except OSError:
        return False
