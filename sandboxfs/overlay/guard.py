"""May this be done? The overlay behind a policy: decide, then delegate.

`Guard` implements every verb of `Filesystem`; one that it forgot would be a type error, never a hole. What
is hidden is not found and not listed, whether it exists or not. A refusal raises `PolicyDenied` and is
recorded; so is every change that was made.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from sandboxfs.layers.syscalls import RENAME_EXCHANGE
from sandboxfs.overlay.decisions import Decisions, Journal, Notes, PolicyDenied, Shown
from sandboxfs.overlay.filesystem import AttributeChange, Caller, Entry, Opened, Seen, Tree
from sandboxfs.overlay.links import LinkGuard
from sandboxfs.overlay.moves import refuse_escape
from sandboxfs.policy.compiled import Compiled, State
from sandboxfs.policy.model import Access, Mode

READ, WRITE, DELETE, EXECUTE = Access.READ, Access.WRITE, Access.DELETE, Access.EXECUTE

# What the kernel adds to the flags when it opens a file to run it: __FMODE_EXEC.
_TO_EXECUTE = 0x20
_EXECUTING, _WRITING, _READING, _READING_AND_WRITING = (EXECUTE,), (WRITE,), (READ,), (READ, WRITE)
_DOTS = (b".", b"..")


class _Move(NamedTuple):
    """One direction of a rename that may be done.

    *state* is that of the old name; *displaces*, whether what is below gets other states.
    """

    state: State
    inodes: list[int]
    displaces: bool


class Guard:
    """A filesystem that asks a policy before it passes a verb on."""

    def __init__(self, inner: Tree, policy: Compiled, journal: Journal, links: LinkGuard) -> None:
        self._inner = inner
        self._decisions = Decisions(inner, policy, journal)
        self._journal = journal
        self._links = links
        self._handles: dict[int, tuple[int, Caller]] = {}
        self._listings: dict[int, tuple[int, Caller]] = {}
        # Handles opened under an earlier policy: decided again whenever they are used, until that allows all.
        self._unsure: set[int] = set()
        # Directories of which the kernel may remember what this policy shows of them.
        self._listed: set[int] = set()

    def defer_records(self) -> Notes:
        """Have changes that were made recorded only when that is asked of what is given: once answered."""
        return self._decisions.defer()

    def closed_by(self, policy: Compiled) -> list[Shown]:
        """The open files that could be written and could not under *policy*."""
        return self._decisions.closed_by(policy, {ino for ino, _ in self._handles.values()})

    def set_policy(self, policy: Compiled) -> list[Shown]:
        """Decide by *policy* from now on; what came into sight or went out of it."""
        self._unsure.update(self._handles)
        hid = self._decisions.hides
        changed = self._decisions.replace(policy)
        if hid or self._decisions.hides:
            changed += [Shown(ino, []) for ino in self._listed]
            # Nor is one to be remembered that is being read now.
            self._listed.clear()
        return changed

    def decide_anew(self) -> None:
        """Decide about everything again: the workspace may have other entries than before."""
        self._unsure.update(self._handles)
        self._decisions.unlearn_all()

    # Looking

    def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        entry = self._inner.lookup(parent, name, caller)
        is_dir = entry is not None and stat.S_ISDIR(entry.stat.st_mode)
        state = self._decisions.child(parent, name, is_dir)
        if not state.free:
            mode = state.decision.mode
            if mode is Mode.DENY and is_dir and not state.quiet and entry is not None:
                # The way to what an earlier rule allows in it; it cannot be listed.
                return self._shown(entry)._replace(guarded=True)
            if mode is Mode.HIDE or (entry is not None and mode is Mode.DENY):
                if entry is not None:
                    self._inner.forget(entry.ino, 1)
                raise self._decisions.refusal("lookup", READ, parent, name, state, caller)
        if entry is None:
            return None
        self._decisions.learn(entry.ino, state, alone=entry.nlink == 1)
        if self._journal.reads:
            self._decisions.note("lookup", READ, parent, name, state, caller)
        return self._shown(entry) if is_dir else entry

    def absence_lasts(self, parent: int) -> bool:
        return self._inner.absence_lasts(parent)

    def remember(self, ino: int) -> None:
        self._inner.remember(ino)

    def forget(self, ino: int, count: int) -> bool:
        gone = self._inner.forget(ino, count)
        if gone:
            self._decisions.unlearn(ino)
            self._listed.discard(ino)
        return gone

    def getattr(self, ino: int, caller: Caller) -> Entry:
        state = self._decisions.of(ino)
        if not state.free or self._journal.reads:
            if state.decision.mode is Mode.DENY and not state.quiet and self._inner.is_dir(ino):
                return self._shown(self._inner.getattr(ino, caller))._replace(guarded=True)
            self._check_read("getattr", ino, caller)
        entry = self._inner.getattr(ino, caller)
        return self._shown(entry) if self._decisions.hides else entry

    def readlink(self, ino: int, caller: Caller) -> bytes:
        self._check_read("readlink", ino, caller)
        target = self._inner.readlink(ino, caller)
        return self._links.answer(ino, target, caller)

    def getxattr(self, ino: int, name: bytes, caller: Caller) -> bytes:
        self._check_read("getxattr", ino, caller)
        return self._inner.getxattr(ino, name, caller)

    def listxattr(self, ino: int, caller: Caller) -> list[bytes]:
        self._check_read("listxattr", ino, caller)
        return self._inner.listxattr(ino, caller)

    def statfs(self) -> os.statvfs_result:
        return self._inner.statfs()

    # Changing

    def setattr(self, ino: int, change: AttributeChange, handle: int | None, caller: Caller) -> Entry:
        state = self._decisions.check_inode("setattr", WRITE, ino, caller)
        entry = self._inner.setattr(ino, change, handle, caller)
        self._decisions.note_inode("setattr", WRITE, ino, state, caller)
        return self._shown(entry) if self._decisions.hides else entry

    def setxattr(self, ino: int, name: bytes, value: bytes, flags: int, caller: Caller) -> None:
        state = self._decisions.check_inode("setxattr", WRITE, ino, caller)
        self._inner.setxattr(ino, name, value, flags, caller)
        self._decisions.note_inode("setxattr", WRITE, ino, state, caller)

    def removexattr(self, ino: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check_inode("removexattr", WRITE, ino, caller)
        self._inner.removexattr(ino, name, caller)
        self._decisions.note_inode("removexattr", WRITE, ino, state, caller)

    # Names

    def mknod(self, parent: int, name: bytes, mode: int, device: int, caller: Caller) -> Entry:
        inner = partial(self._inner.mknod, parent, name, mode, device, caller)
        return self._made("mknod", parent, name, False, caller, inner)

    def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        inner = partial(self._inner.mkdir, parent, name, mode, caller)
        return self._made("mkdir", parent, name, True, caller, inner)

    def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        inner = partial(self._inner.symlink, parent, name, target, caller)
        return self._made("symlink", parent, name, False, caller, inner)

    def _made(
        self, op: str, parent: int, name: bytes, is_dir: bool, caller: Caller, make: Callable[[], Entry]
    ) -> Entry:
        state = self._check_making(op, parent, name, is_dir, caller)
        entry = make()
        self._decisions.learn(entry.ino, state, alone=True)
        self._decisions.note(op, WRITE, parent, name, state, caller)
        return entry

    def _check_making(self, op: str, parent: int, name: bytes, is_dir: bool, caller: Caller) -> State:
        """Check a name that the kernel found free.

        A rule may hide something there that is a directory where this is to be none, or the reverse: that
        must not become known by being in the way.
        """
        state = self._decisions.check(op, WRITE, parent, name, is_dir, caller, creating=True)
        if not self._decisions.hides:
            return state
        other = self._decisions.child(parent, name, not is_dir)
        if other.decision.mode is Mode.HIDE:
            there = self._peek(parent, name, caller)
            if there is not None and _is_dir(there) is not is_dir:
                raise self._decisions.refusal(op, WRITE, parent, name, other, caller, creating=True)
        return state

    def link(self, ino: int, parent: int, name: bytes, caller: Caller) -> Entry:
        # A second name is a second door: what may not be changed by the first must not get another.
        self._decisions.check_inode("link", WRITE, ino, caller)
        state = self._check_making("link", parent, name, False, caller)
        source = self._inner.path(ino)
        entry = self._inner.link(ino, parent, name, caller)
        self._decisions.learn(entry.ino, state, alone=False)
        self._journal.record(
            "link", WRITE, source, self._inner.path_to(parent, name), state.decision, caller, 0
        )
        return entry

    def unlink(self, parent: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check("unlink", DELETE, parent, name, False, caller)
        self._inner.unlink(parent, name, caller)
        self._decisions.note("unlink", DELETE, parent, name, state, caller)

    def rmdir(self, parent: int, name: bytes, caller: Caller) -> None:
        state = self._decisions.check("rmdir", DELETE, parent, name, True, caller)
        try:
            self._inner.rmdir(parent, name, caller)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                self._explain_not_empty(parent, name, caller)
            raise
        self._decisions.note("rmdir", DELETE, parent, name, state, caller)

    def rename(
        self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, caller: Caller
    ) -> None:
        moves: list[_Move] = []

        def approve(source: Seen | None, target: Seen | None) -> None:
            moves[:] = [self._check_move(source, parent, name, target, new_parent, new_name, caller)]
            if flags & RENAME_EXCHANGE:
                moves.append(self._check_move(target, new_parent, new_name, source, parent, name, caller))

        path = self._inner.path_to(parent, name)
        self._inner.move(parent, name, new_parent, new_name, flags, approve)
        done = moves[0]
        if done.displaces or moves[-1].displaces:
            self._decisions.unlearn_all()
        for ino in done.inodes:
            self._decisions.unlearn(ino)
        self._decisions.note_move(path, new_parent, new_name, done.state, caller)

    def _check_move(
        self,
        source: Seen | None,
        parent: int,
        name: bytes,
        target: Seen | None,
        new_parent: int,
        new_name: bytes,
        caller: Caller,
    ) -> "_Move":
        """Check both ends and everything below."""
        is_dir = source is not None and source.is_dir
        old = self._decisions.check("rename", DELETE, parent, name, is_dir, caller)
        at_target = new_parent, new_name
        if target is not None:
            self._decisions.check("rename", DELETE, *at_target, target.is_dir, caller, creating=True)
        new = self._decisions.check("rename", WRITE, *at_target, is_dir, caller, creating=True)
        inodes = [seen.ino for seen in (source, target) if seen is not None]
        if source is None or not is_dir:
            return _Move(old, inodes, displaces=False)
        to = self._inner.path_to(new_parent, new_name)
        refuse_escape(self._inner, self._decisions, source.ino, old, new, to, caller)
        return _Move(old, inodes, displaces=not (old is new and old.quiet))

    # Files

    def open(self, ino: int, flags: int, caller: Caller) -> Opened:
        accesses = _accesses(flags)
        state = self._decisions.of(ino)
        if not state.free:
            for access in accesses:
                self._decisions.check_inode("open", access, ino, caller)
        opened = self._inner.open(ino, flags, caller)
        self._handles[opened.handle] = ino, caller
        if accesses[-1] is WRITE or self._journal.reads:
            self._decisions.note_inode("open", accesses[-1], ino, state, caller)
        else:
            self._journal.count_read(state.decision)
        return opened

    def create(self, parent: int, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Opened, Entry]:
        state = self._check_making("create", parent, name, False, caller)
        opened, entry = self._inner.create(parent, name, mode, flags, caller)
        self._handles[opened.handle] = entry.ino, caller
        self._decisions.learn(entry.ino, state, alone=entry.nlink == 1)
        self._decisions.note("create", WRITE, parent, name, state, caller)
        return opened, entry

    def read(self, handle: int, offset: int, size: int) -> bytes | memoryview:
        if handle in self._unsure:
            self._decide_again(handle, "read", READ)
        return self._inner.read(handle, offset, size)

    def write(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        if handle in self._unsure:
            self._decide_again(handle, "write", WRITE)
        return self._inner.write(handle, offset, data)

    def release(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._unsure.discard(handle)
        self._inner.release(handle)

    def fsync(self, handle: int, datasync: bool) -> None:
        self._inner.fsync(handle, datasync)

    # Directories

    def opendir(self, ino: int, caller: Caller) -> int:
        self._check_read("opendir", ino, caller)
        handle = self._inner.opendir(ino, caller)
        self._listings[handle] = ino, caller
        return handle

    def listing_lasts(self, handle: int) -> bool:
        return self._listings[handle][0] in self._listed and self._inner.listing_lasts(handle)

    def familiar(self, handle: int, start: int) -> bool:
        return self._inner.familiar(handle, start)

    def readdir(self, handle: int, start: int, *, brief: bool = False) -> Iterator[tuple[bytes, Entry, int]]:
        ino, caller = self._listings[handle]
        state = self._decisions.check_inode("readdir", READ, ino, caller)
        if start == 0:
            self._listed.add(ino)
        if state.quiet:
            return self._inner.readdir(handle, start, brief=brief)
        return self._seen(self._inner.readdir(handle, start, brief=brief), ino, state)

    def _seen(
        self, entries: Iterator[tuple[bytes, Entry, int]], ino: int, state: State
    ) -> Iterator[tuple[bytes, Entry, int]]:
        # One request takes it to its end, so *state* stays the directory's.
        step, hides = self._decisions.step, self._decisions.hides
        for name, entry, following in entries:
            if entry.mentioned and not hides:
                # A mention tells nothing but the name.
                yield name, entry, following
                continue
            is_dir = stat.S_ISDIR(entry.stat.st_mode)
            if is_dir:
                entry = self._shown(entry)
                if name in _DOTS:
                    yield name, entry, following
                    continue
            found = step(state, ino, name, is_dir)
            if found.free or (mode := found.decision.mode) is Mode.RO:
                yield name, entry, following
            elif mode is Mode.HIDE:
                self._inner.forget(entry.ino, 0)
            else:
                # Listed, but the kernel must ask before it tells more.
                yield name, entry._replace(guarded=True), following

    def releasedir(self, handle: int) -> None:
        self._listings.pop(handle, None)
        self._inner.releasedir(handle)

    def fsyncdir(self, ino: int, datasync: bool) -> None:
        self._inner.fsyncdir(ino, datasync)

    def close(self) -> None:
        self._inner.close()

    # Helpers

    def _shown(self, entry: Entry) -> Entry:
        """Without the link count of a directory, which would tell how many hidden ones are in it."""
        if self._decisions.hides and stat.S_ISDIR(entry.stat.st_mode):
            return entry._replace(nlink=1)
        return entry

    def _check_read(self, op: str, ino: int, caller: Caller) -> None:
        state = self._decisions.check_inode(op, READ, ino, caller)
        if self._journal.reads:
            self._decisions.note_inode(op, READ, ino, state, caller)

    def _decide_again(self, handle: int, op: str, access: Access) -> None:
        ino, caller = self._handles[handle]
        state = self._decisions.check_inode(op, access, ino, caller)
        if state.decision.mode is Mode.RW:
            self._unsure.discard(handle)

    def _peek(self, parent: int, name: bytes, caller: Caller) -> Entry | None:
        entry = self._inner.lookup(parent, name, caller)
        if entry is not None:
            self._inner.forget(entry.ino, 1)
        return entry

    def _explain_not_empty(self, parent: int, name: bytes, caller: Caller) -> None:
        """Raise a denial when all that is in the way is hidden: the caller sees an empty directory."""
        entry = self._inner.lookup(parent, name, caller)
        if entry is None:
            return
        handle = self._inner.opendir(entry.ino, caller)
        try:
            hidden = None
            for inner_name, inside, _ in self._inner.readdir(handle, 0):
                if inner_name in _DOTS:
                    continue
                is_dir = stat.S_ISDIR(inside.stat.st_mode)
                state = self._decisions.child(entry.ino, inner_name, is_dir)
                if state.decision.mode is not Mode.HIDE:
                    return
                hidden = state.decision
            if hidden is not None:
                path = self._inner.path_to(parent, name)
                self._journal.record("rmdir", DELETE, path, None, hidden, caller, errno.EACCES)
                raise PolicyDenied(errno.EACCES, hidden)
        finally:
            self._inner.releasedir(handle)
            self._inner.forget(entry.ino, 1)


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and stat.S_ISDIR(entry.stat.st_mode)


def _accesses(flags: int) -> tuple[Access, ...]:
    """What opening with these flags attempts; the weightiest last."""
    if flags & _TO_EXECUTE:
        return _EXECUTING
    wanted = flags & os.O_ACCMODE
    if wanted == os.O_WRONLY:
        return _WRITING
    return _READING_AND_WRITING if wanted != os.O_RDONLY or flags & os.O_TRUNC else _READING
