"""How does a file get other content without being replaced?

Where something is mounted on a name, or a name stands for a file that others hold on to, no rename can put
another file there. Then its bytes are written over, after what it had was saved.
"""

import os

from sandboxfs.changes.steps import Identity, Surprise
from sandboxfs.layers import copying, replica
from sandboxfs.layers.hostdir import HostDir


def rewrite(
    source: HostDir, name: bytes, target: HostDir, target_name: bytes, expected: Identity | None, path: bytes
) -> None:
    """Give the file *target_name* the content and attributes of *name*, on disk when this returns.

    `Surprise`, about *path*, when it is not what was *expected*; None expects any file.
    """
    original = replica.open_source(source, name)
    try:
        written = target.open(target_name, os.O_WRONLY)
        try:
            if expected is not None and not expected.is_exactly(os.fstat(written)):
                raise Surprise(path, "changed in the workspace meanwhile")
            status = os.fstat(original)
            os.ftruncate(written, 0)
            copying.copy_data(original, written, status.st_size)
            replica.dress_file(written, replica.attributes_at(source, name, status, replica.of_the_host))
            os.fsync(written)
        finally:
            os.close(written)
    finally:
        os.close(original)
