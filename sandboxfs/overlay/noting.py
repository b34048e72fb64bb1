"""What must be written down before the upper hides something of the workspace?

Every name that the upper is about to have, and did not have before, is noted in the baseline if the workspace
has it: copies, whiteouts, and what is moved over a lower entry. Noting belongs to the preparation of a
change: where it fails, the change does. While the upper has an entry, whiteouts included, its name is not
noted again: what counts is what the sandbox saw first.
"""

import os

from sandboxfs.layers.hostdir import HostDir
from sandboxfs.overlay.merge import Merge
from sandboxfs.overlay.node import Directory, Found, LowerPart, Node


class Noting:
    """Notes what the bottom layer has; layers above it were uppers, and brought their own baseline."""

    def __init__(self, merge: Merge) -> None:
        self._merge = merge
        self._stack = merge.stack
        self._bottom = len(merge.stack.layers) - 1

    def root(self, status: os.stat_result, number: int) -> None:
        if self._stack.baseline is not None and self._bottom == 0:
            self._stack.baseline.note(b"", self._stack.workspace, b"", status, number, keep=False)

    def directory(self, directory: Directory, source: HostDir, status: os.stat_result) -> None:
        """Note a lower directory that is about to be copied."""
        top = directory.lowers[0]
        if self._stack.baseline is not None and top.layer == self._bottom:
            self._stack.baseline.note(top.path, source, b"", status, directory.number, keep=False)

    def content(self, node: Node, status: os.stat_result) -> None:
        """Note a lower file that is about to be copied, with its bytes: they may have to be merged."""
        if node.parent is not None and node.layer == self._bottom:
            self._note(node.parent, node.name, status, node.number, keep=True)

    def removal(self, parent: Directory, name: bytes, found: Found, *, keep: bool = False) -> None:
        """Note what is found at *name* before it is removed or replaced; *keep* when by another file."""
        if not found.upper:
            layer = found.lowers[0].layer if found.lowers else found.layer
            if layer == self._bottom:
                self._note(parent, name, found.stat, found.ino, keep=keep)
        elif found.indexed and not self._merge.upper_has(parent, name):
            self.name(parent, name, found.ino, keep=keep)

    def name(self, parent: Directory, name: bytes, number: int, *, keep: bool) -> None:
        """Note another name of a hard-linked lower file, at which the upper has nothing yet."""
        part = self._part(parent)
        status = None if part is None else self._merge.fds.lower(part).stat(name)
        if status is not None:
            self._note(parent, name, status, number, keep=keep)

    def replacement(self, parent: Directory, name: bytes) -> None:
        """Keep the bytes of a deleted lower file, at whose name a file is about to be made."""
        part = self._part(parent)
        if self._stack.baseline is not None and part is not None:
            self._stack.baseline.keep(part.child_path(name), self._merge.fds.lower(part), name)

    def _part(self, directory: Directory) -> LowerPart | None:
        """The workspace's part of a directory, which is always the last."""
        lowers = directory.lowers
        return lowers[-1] if lowers and lowers[-1].layer == self._bottom else None

    def _note(
        self, parent: Directory, name: bytes, status: os.stat_result, number: int, *, keep: bool
    ) -> None:
        part = self._part(parent)
        if self._stack.baseline is not None and part is not None:
            source = self._merge.fds.lower(part)
            self._stack.baseline.note(part.child_path(name), source, name, status, number, keep=keep)
