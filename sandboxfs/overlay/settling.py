"""How is an upper settled while programs work in the view?

The layers are settled as where nobody serves them (`layers.settling`), between two requests of the kernel.
Then whatever the kernel knows of the places concerned is renewed, and what it may have cached of them is told
to the caller. Nobody is asked whether a policy allows it: a person did.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.layers.settlement import (
    ABSENT,
    BUSY,
    CHANGED,
    Drop,
    Moved,
    Open,
    Operation,
    Outcome,
    Put,
    Rebase,
    Redress,
    Resume,
    Unmoved,
    Whiteout,
    paths_of,
    refused,
)
from sandboxfs.layers.settling import Settling
from sandboxfs.layers.uppertree import UpperTree
from sandboxfs.overlay.files import Files
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, Node
from sandboxfs.overlay.renewal import Outdated, Renewal, path_of

_UNTOUCHED = (ABSENT, BUSY, CHANGED)
_MASKED = "a mount of sandboxfs is in the way"


@dataclass
class _Spot:
    """A place of the view before it is changed: the known directories on the way, and what is there.

    *number* is that of an indexed file.
    """

    way: list[Directory]
    name: bytes
    found: Found | None
    node: Node | None
    number: int = 0


class LiveSettling:
    """Settles the upper of one overlay; *commits* is the directory of all records, the caller's to close."""

    def __init__(self, merge: Merge, files: Files, commits: HostDir) -> None:
        stack = merge.stack
        self._merge = merge
        self._files = files
        self._tree = UpperTree(
            upper=stack.upper,
            workspace=stack.workspace,
            staging=stack.staging,
            index=stack.index,
            whiteouts=stack.whiteouts,
            baseline=stack.baseline,
            lower_number=self._number,
            upper_number=merge.numbers.of_upper,
        )
        self._layers = Settling(self._tree, commits)
        self._ways: dict[bytes, list[Directory] | None] = {}

    def close(self) -> None:
        self._layers.close()

    def written(self, operations: Iterable[Operation]) -> list[int]:
        """The inodes concerned that programs have open for writing."""
        paths = {path for operation in operations for path in paths_of(operation)}
        return [
            node.ino
            for node in self._files.written()
            if any(path_of(place) in paths for place in node.places())
        ]

    def settle(self, record: int, operations: Iterable[Operation], outdated: Outdated) -> list[Outcome]:
        """Do some operations at once; FileNotFoundError when there is no such record."""
        self._layers.use(record)
        # Between two calls programs may have changed everything.
        self._ways.clear()
        renewal = Renewal(self._merge, self._files, outdated)
        operations = list(operations)
        if Redress(b"") in operations or Redress(b"", back=True) in operations:
            outdated.inodes.add(self._merge.root.ino)
        outcomes = [self._settle(operation, renewal) for operation in operations]
        for directory in self._merge.inodes.directories():
            # Whichever got or lost names: a review is rare, and reading a directory again is cheap.
            if directory.listed is not None:
                directory.listed = None
                outdated.inodes.add(directory.ino)
        return outcomes

    def _settle(self, operation: Operation, renewal: Renewal) -> Outcome:
        try:
            try:
                return self._do(operation, renewal)
            except PermissionError:
                with self._tree.accessible(*paths_of(operation)):
                    return self._do(operation, renewal)
        except OSError as error:
            return refused(error.strerror or str(error))

    def _do(self, operation: Operation, renewal: Renewal) -> Outcome:
        if self._leads_to_a_mount(operation):
            return refused(_MASKED)
        spots = [spot for path in paths_of(operation) if (spot := self._spot(path)) is not None]
        follows = self._follows(operation)
        renewal.failed = False
        outcome = self._layers.settle(operation)
        if not isinstance(operation, Drop | Rebase | Resume):
            # Directories may have come, gone or changed.
            self._ways.clear()
        if follows is not None and outcome.done:
            renewal.follow_workspace(*follows)
        if outcome.why not in _UNTOUCHED:
            self._renew(spots, operation, renewal)
        if renewal.failed and isinstance(operation, Drop):
            # Whoever has it open could not go on: it stays.
            self._layers.settle(Put(operation.path, operation.keep))
            self._renew(spots, operation, renewal)
            return refused(os.strerror(errno.EACCES))
        return outcome

    # What is known

    def _spot(self, path: bytes) -> _Spot | None:
        """What is known at a place of the view; None when its directory is not known, so that nothing is."""
        folder, _, name = path.rpartition(b"/")
        if folder not in self._ways:
            self._ways[folder] = self._way(folder)
        way = self._ways[folder]
        if way is None:
            return None
        found = self._merge.find(way[-1], name)
        if found is None:
            return _Spot(way, name, None, None)
        number = found.ino if found.indexed else 0
        return _Spot(way, name, found, self._merge.inodes.known(found), number)

    def _way(self, path: bytes) -> list[Directory] | None:
        """The directories from the root to *path*, if they are known."""
        way = [self._merge.root]
        for name in path.split(b"/") if path else ():
            found = self._merge.find(way[-1], name)
            node = None if found is None else self._merge.inodes.known(found)
            if found is None or not isinstance(node, Directory):
                return None
            # The host may have replaced lower directories since the kernel last looked.
            self._merge.node_of(way[-1], name, found)
            way.append(node)
        return way

    def _leads_to_a_mount(self, operation: Operation) -> bool:
        """Whether a lower place would have to be asked for that only we, or others like us, answer for."""
        match operation:
            case Rebase() | Resume():
                lower: bytes | None = operation.lower
            case Open():
                lower = self._tree.natural(operation.path)
            case Put() | Whiteout():
                lower = self._tree.lower_of(os.path.dirname(operation.path))
            case Unmoved():
                lower = self._tree.lower_of(os.path.dirname(operation.old))
            case _:
                return False
        return lower is not None and self._merge.is_masked(lower)

    def _number(self, status: os.stat_result) -> int:
        numbers = self._merge.numbers
        return numbers.of_lower(status) if numbers.knows(status.st_dev) else 0

    # Following

    def _renew(self, spots: list[_Spot], operation: Operation, renewal: Renewal) -> None:
        for spot in spots:
            self._renew_spot(spot, operation, renewal)
        # Other names of a hard-linked file may show something else too, and other nodes stand for them.
        numbers = {spot.number for spot in spots if spot.number}
        if isinstance(operation, Drop | Put | Whiteout) and operation.number is not None:
            numbers.add(operation.number)
        for node in [node for number in numbers for node in self._merge.inodes.numbered(number)]:
            for place in node.places()[:1]:
                renewal.renew(node, place, None)

    def _renew_spot(self, spot: _Spot, operation: Operation, renewal: Renewal) -> None:
        for directory in spot.way[1:]:
            if not directory.upper and directory.parent is not None:
                # Something may have been put below it.
                renewal.renew(directory, (directory.parent, directory.name), None)
        place = spot.way[-1], spot.name
        renewal.expire(place)
        if spot.node is None:
            renewal.revive(place)
        else:
            # In an opaque directory that is opened nothing changes, however much is known of it.
            opaque = isinstance(spot.node, Directory) and not spot.node.lowers
            renewal.renew(spot.node, place, spot.found, below=not (isinstance(operation, Open) and opaque))

    def _follows(self, operation: Operation) -> tuple[bytes, bytes] | None:
        """From where to where the workspace moved a directory that the operation is about to follow."""
        if isinstance(operation, Moved) and self._tree.lower_of(operation.new) == operation.old:
            return operation.old, operation.new
        if isinstance(operation, Unmoved) and self._tree.lower_of(operation.new) == operation.new:
            return operation.new, operation.old
        return None
