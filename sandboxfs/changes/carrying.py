"""How is a whole tree looked at, and how is it carried to a place where a rename does not reach?

Directories that keep their owner out are unlocked for the moment; depth costs no descriptors.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from sandboxfs.changes.ground import Ground
from sandboxfs.changes.steps import Identity, joined, parted
from sandboxfs.layers import replica
from sandboxfs.layers.durable import Syncer
from sandboxfs.layers.hostdir import HostDir

_PART = b".part"

Same = Callable[[Identity, os.stat_result], bool]
"""Whether an object still is what it was."""


def contents(top: HostDir) -> Iterator[tuple[bytes, os.stat_result]]:
    """Everything below *top* by its path from there, directories before what is in them."""
    with Ground(top) as ground:
        pending = [b""]
        while pending:
            here = pending.pop()
            for name, status in ground.in_it(here, _listed):
                path = joined(here, name)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)


def _listed(directory: HostDir) -> list[tuple[bytes, os.stat_result]]:
    found = ((name, directory.stat(name)) for name in directory.names())
    return [(name, status) for name, status in found if status is not None]


def first_difference(
    top: HostDir, expected: Mapping[bytes, Identity], same: Same = Identity.is_untouched
) -> bytes | None:
    """A path below *top* that is not *expected*, or not the *same*; None when all is."""
    seen = 0
    for path, status in contents(top):
        identity = expected.get(path)
        if identity is None or not same(identity, status):
            return path
        seen += 1
    if seen == len(expected):
        return None
    found = {path for path, _ in contents(top)}
    return next((path for path in expected if path not in found), None)


def carry(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> None:
    """Move *name* to a free name on whatever filesystem; done again after a crash it comes to the same."""
    if brought(source, name, target, new_name):
        source.remove_tree(name)


def brought(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> bool:
    """Have *name* at a free name on whatever filesystem; whether it is a copy, and *name* still there."""
    if target.stat(new_name) is not None:
        return True
    try:
        source.rename(name, target, new_name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return False
    target.remove_tree(new_name + _PART)
    copy_tree(source, name, target, new_name + _PART)
    target.rename(new_name + _PART, target, new_name)
    return True


def remove_copy(target: HostDir, new_name: bytes) -> None:
    """Remove what `brought` copied, whole or in part."""
    target.remove_tree(new_name + _PART)
    target.remove_tree(new_name)


def copy_tree(source: HostDir, name: bytes, target: HostDir, new_name: bytes) -> None:
    """Make a replica of *name* and all below it, on disk when this returns."""
    status = source.stat(name)
    if status is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with Syncer() as syncer:
        if not stat.S_ISDIR(status.st_mode):
            _copy(source, name, target, status, syncer, new_name)
            return
        target.mkdir(new_name, 0o700)
        with source.child(name) as top, target.child(new_name) as made:
            _copy_inside(top, made, syncer)
        replica.dress(target, new_name, replica.attributes_at(source, name, status, replica.of_the_host))


def _copy_inside(top: HostDir, made: HostDir, syncer: Syncer) -> None:
    directories: list[tuple[bytes, os.stat_result]] = []
    with Ground(top) as originals, Ground(made) as copies:
        for path, status in contents(top):
            folder, name = parted(path)
            if stat.S_ISDIR(status.st_mode):
                copies.open(folder).mkdir(name, 0o700)
                directories.append((path, status))
                continue
            act = partial(_copy, name=name, target=copies.open(folder), status=status, syncer=syncer)
            originals.in_it(folder, act)
        for path, status in reversed(directories):
            folder, name = parted(path)
            attributes = replica.attributes_at(originals.open(folder), name, status, replica.of_the_host)
            replica.dress(copies.open(folder), name, attributes)


def _copy(
    source: HostDir,
    name: bytes,
    target: HostDir,
    status: os.stat_result,
    syncer: Syncer,
    new_name: bytes | None = None,
) -> None:
    new_name = new_name or name
    if stat.S_ISREG(status.st_mode):
        replica.copy_file(source, name, target, new_name, syncer, replica.of_the_host)
    else:
        replica.make_other(source, name, target, new_name, replica.of_the_host)
