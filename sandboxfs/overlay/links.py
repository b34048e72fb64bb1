"""Where may a symlink of the view lead?

The kernel follows a link in the caller's world, so a link could lead around the view. A target inside the
workspace is answered as the way to the same place in the view. One that leaves it is kept when it leads
into system directories or to a program, which virtual environments need, and is refused otherwise: `rm -rf
data/*` through such a link would destroy what no commit can bring back.
"""

import errno
import posixpath
import stat

from sandboxfs.overlay.decisions import Journal, PolicyDenied
from sandboxfs.overlay.filesystem import Caller, Tree
from sandboxfs.policy.config import Symlinks
from sandboxfs.policy.model import Access, Decision, Kind, Mode, Rule, Source

_SYSTEM = (b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/opt", b"/nix", b"/etc")


class LinkGuard:
    """Answers what a symlink's target is."""

    def __init__(
        self, tree: Tree, journal: Journal, mode: Symlinks, workspace: bytes, mountpoint: bytes
    ) -> None:
        self._tree = tree
        self._journal = journal
        self._mode = mode
        self._workspace = workspace
        self._mountpoint = mountpoint
        rule = Rule("symlinks", Mode.DENY, Source(Kind.BUILT_IN, f'symlinks = "{mode.value}"'))
        self._decision = Decision(Mode.DENY, rule)

    def answer(self, ino: int, target: bytes, caller: Caller) -> bytes:
        """The target to tell; raises where the link may not be followed."""
        if self._mode is Symlinks.KEEP:
            return target
        path = self._tree.path(ino)
        if target.startswith(b"/"):
            return self._absolute(path, target, posixpath.normpath(target), caller)
        if self._stays(ino, path, target, caller):
            return target
        # Relative to where the link lies in the workspace, not to where the view happens to be.
        host = posixpath.normpath(posixpath.join(self._workspace, posixpath.dirname(path), target))
        return self._absolute(path, host, host, caller)

    def _absolute(self, path: bytes, target: bytes, place: bytes, caller: Caller) -> bytes:
        inside = _below(place, self._workspace)
        if inside is not None:
            up = b"../" * path.count(b"/")
            return up + inside if inside else up.rstrip(b"/") or b"."
        # As it was judged: `..` after a name that is a link itself leads the kernel somewhere else.
        told = place if b".." in target.split(b"/") else target
        if _below(place, self._mountpoint) is not None:
            return told
        if self._mode is Symlinks.GUARD and (_is_system(place) or _is_program(place)):
            return told
        self._journal.record("readlink", Access.READ, path, target, self._decision, caller, errno.EACCES)
        raise PolicyDenied(errno.EACCES, self._decision)

    def _stays(self, ino: int, path: bytes, target: bytes, caller: Caller) -> bool:
        """Whether a relative target stays in the view on all of its way."""
        depth = path.count(b"/")
        names = [name for name in target.split(b"/") if name not in (b"", b".")]
        named = False
        for name in names:
            if name != b"..":
                depth += 1
                named = True
                continue
            depth -= 1
            if depth < 0:
                return False
            if named:
                # After a name that may itself be a link, counting is not enough.
                return self._walks(ino, names, caller)
        return True

    def _walks(self, ino: int, names: list[bytes], caller: Caller) -> bool:
        """Whether a target with `..` after a name leads through plain directories of the view only."""
        places = self._tree.places(ino)
        if not places:
            return False
        directory = places[0][0]
        held: list[int] = []
        try:
            for number, name in enumerate(names):
                if b".." not in names[number:]:
                    break
                if name == b"..":
                    above = self._tree.places(directory)
                    if not above:
                        return False
                    directory = above[0][0]
                    continue
                entry = self._tree.lookup(directory, name, caller)
                if entry is None:
                    return False
                held.append(entry.ino)
                if not stat.S_ISDIR(entry.stat.st_mode):
                    return False
                directory = entry.ino
        finally:
            for looked_up in held:
                self._tree.forget(looked_up, 1)
        return True


def _is_system(place: bytes) -> bool:
    return any(_below(place, top) is not None for top in _SYSTEM)


def _is_program(place: bytes) -> bool:
    """Whether a path names a program: virtual environments link to interpreters in home directories.

    By its looks only. Asking the host could lead back into our own mount, and make the daemon wait for
    itself.
    """
    return posixpath.basename(posixpath.dirname(place)) in (b"bin", b"sbin", b"libexec")


def _below(place: bytes, top: bytes) -> bytes | None:
    """The way from *top* to *place*, component-wise; None when it is not below."""
    if place == top:
        return b""
    prefix = top.rstrip(b"/") + b"/"
    return place[len(prefix) :] if place.startswith(prefix) else None
