"""How do the core's values and errors look to pyfuse3?

`reply` is the only error boundary: pyfuse3 lets any exception but FUSEError end its main loop, and the
mount with it, so whatever else a handler raises becomes EIO and a traceback in the log, and the mount lives
on. Where there is no answer, not even FUSEError may come through: `no_reply`.
"""

import errno
import functools
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from sandboxfs.fuse.later import DoBeside, finish
from sandboxfs.fuse.wire import FLEETING, LASTING, SECONDS
from sandboxfs.overlay.filesystem import AttributeChange, Entry
from sandboxfs.overlay.later import Later

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class _Serves(Protocol):
    beside: DoBeside


S = TypeVar("S", bound=_Serves)


def reply(
    handler: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[None, None, T]]:
    """Make a plain method the coroutine that pyfuse3 calls, with the error boundary around it."""

    @functools.wraps(handler)
    async def answered(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            try:
                return handler(self, *args, **kwargs)
            except Later as later:
                return await finish(self.beside, later, lambda: handler(self, *args, **kwargs))
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        except Exception:
            log.exception("bug in %s; the kernel gets EIO", handler.__name__)
            raise pyfuse3.FUSEError(errno.EIO) from None

    return answered


def no_reply(
    handler: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], Coroutine[None, None, None]]:
    """Make a plain method the coroutine of an operation that has no answer, and so no error either."""

    @functools.wraps(handler)
    async def done(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            handler(self, *args, **kwargs)
        except Exception:
            log.exception("bug in %s; nobody is told", handler.__name__)

    return done


def attributes(entry: Entry) -> pyfuse3.EntryAttributes:
    """The entry as the kernel takes it."""
    result = pyfuse3.EntryAttributes()
    status = entry.stat
    result.st_ino = entry.ino
    result.st_mode = status.st_mode
    result.st_nlink = entry.nlink
    result.st_uid = status.st_uid
    result.st_gid = status.st_gid
    result.st_rdev = status.st_rdev
    result.st_size = status.st_size
    result.st_blksize = status.st_blksize
    result.st_blocks = status.st_blocks
    result.st_atime_ns = status.st_atime_ns
    result.st_mtime_ns = status.st_mtime_ns
    result.st_ctime_ns = status.st_ctime_ns
    if entry.guarded:
        result.entry_timeout = result.attr_timeout = 0
    else:
        result.entry_timeout = SECONDS[entry.name]
        result.attr_timeout = SECONDS[entry.attributes]
    return result


def _absent(seconds: float) -> pyfuse3.EntryAttributes:
    result = pyfuse3.EntryAttributes()
    result.st_ino = 0
    result.entry_timeout = seconds
    return result


ABSENT, ABSENT_FOR_LONG = _absent(FLEETING), _absent(LASTING)
"""The answers "no such name", which the kernel may remember. pyfuse3 copies them."""


def change(attr: pyfuse3.EntryAttributes, fields: pyfuse3.SetattrFields) -> AttributeChange:
    return AttributeChange(
        mode=attr.st_mode if fields.update_mode else None,
        uid=attr.st_uid if fields.update_uid else None,
        gid=attr.st_gid if fields.update_gid else None,
        size=attr.st_size if fields.update_size else None,
        atime_ns=attr.st_atime_ns if fields.update_atime else None,
        mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
    )


def statistics(host: os.statvfs_result) -> pyfuse3.StatvfsData:
    result = pyfuse3.StatvfsData()
    result.f_bsize = host.f_bsize
    result.f_frsize = host.f_frsize
    result.f_blocks = host.f_blocks
    result.f_bfree = host.f_bfree
    result.f_bavail = host.f_bavail
    result.f_files = host.f_files
    result.f_ffree = host.f_ffree
    result.f_favail = host.f_favail
    result.f_namemax = host.f_namemax
    return result
