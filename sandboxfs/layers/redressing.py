"""How does a directory of the upper get the attributes of the lower one, and its own again?

Those it had are written down in the record first, so that whoever is killed in between can go on, and whoever
takes it back knows them.
"""

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.kept import Kept
from sandboxfs.layers.replica import Attributes, attributes_at, change, of_the_sandbox
from sandboxfs.layers.settlement import ABSENT, DONE, Outcome, Redress, refused
from sandboxfs.layers.settlement_json import path_bytes, text
from sandboxfs.layers.uppertree import NOWHERE, UpperTree

_NOTE = b"dress"


def redress(tree: UpperTree, kept: Kept, operation: Redress) -> Outcome:
    """Do *operation*; OSError where one of the directories is not there."""
    noted = kept.note(_NOTE, operation.path)
    try:
        upper = tree.upper.descend(operation.path)
    except OSError as error:
        if noted is None or operation.back or error.errno not in NOWHERE:
            raise
        # It was done, and the directory has gone its way since.
        return DONE
    with upper as directory:
        own = _attributes(directory)
        if operation.back:
            if noted is not None:
                change(directory.fd, own, _read(noted, own))
                kept.drop_note(_NOTE, operation.path)
            return DONE
        lower = tree.lower_of(operation.path)
        if lower is None:
            return refused(ABSENT)
        with tree.workspace.descend(lower) as source:
            if noted is None:
                kept.write_note(_NOTE, operation.path, _written(own))
            change(directory.fd, own, _attributes(source))
    return DONE


def _attributes(directory: HostDir) -> Attributes:
    return attributes_at(directory, b"", directory.own_stat(), of_the_sandbox)


def _written(own: Attributes) -> dict[str, object]:
    xattrs = {text(name): value.hex() for name, value in own.xattrs}
    return {"mode": own.mode, "uid": own.uid, "gid": own.gid, "xattrs": xattrs}


def _read(noted: dict[str, object], own: Attributes) -> Attributes:
    """What a note says; ValueError when it says nothing."""
    match noted:
        case {"mode": int(mode), "uid": int(uid), "gid": int(gid), "xattrs": dict(xattrs)}:
            values = ((path_bytes(str(name)), bytes.fromhex(str(value))) for name, value in xattrs.items())
            return Attributes(mode, uid, gid, own.atime_ns, own.mtime_ns, tuple(values))
        case _:
            raise ValueError("no attributes")
