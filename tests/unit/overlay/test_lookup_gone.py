"""Does a directory that is gone stay gone, whatever gets its name?"""

import os
import stat

from sandboxfs.overlay.filesystem import ROOT_INODE, AnonymousCaller
from sandboxfs.overlay.overlay import Overlay

ME = AnonymousCaller(os.getuid(), os.getgid(), os.getpid())


def test_a_directory_that_is_gone_has_nothing_of_the_one_that_has_its_name_now(overlay: Overlay) -> None:
    gone = overlay.mkdir(ROOT_INODE, b"dir", stat.S_IFDIR | 0o700, ME).ino
    overlay.rmdir(ROOT_INODE, b"dir")
    now = overlay.mkdir(ROOT_INODE, b"dir", stat.S_IFDIR | 0o755, ME).ino
    overlay.create(now, b"file", stat.S_IFREG | 0o644, os.O_RDWR, ME)
    assert overlay.lookup(gone, b"file") is None
    entry = overlay.getattr(gone)
    assert stat.S_IMODE(entry.stat.st_mode) == 0o700
    assert entry.nlink == 0
