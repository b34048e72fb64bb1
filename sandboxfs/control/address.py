"""Where is the control socket of a sandbox?

In the runtime directory, which only its user may enter. Two state directories may share one, so the socket's
name tells them apart. A client's environment may name another runtime directory than the daemon's did, so
the daemon also leaves a link to the socket with the sandbox.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandboxfs.state.locations import Locations

# sun_path has 108 bytes, one of them for the NUL at the end (unix(7)).
_PATH_LIMIT = 107


@dataclass(frozen=True)
class ControlAddress:
    """How to reach the daemon of the sandbox called *name*.

    *link*, in the sandbox's directory, leads to *socket* while a daemon serves it; *log* is what to read
    when no one answers.
    """

    name: str
    socket: Path
    link: Path
    log: Path

    def found(self) -> Path:
        """Return where the daemon said that it listens, else where it would by this environment."""
        try:
            return self.link.readlink()
        except OSError:
            return self.socket


def control_address(locations: Locations, name: str) -> ControlAddress:
    """Return the address of the sandbox called *name*, which need not be served."""
    tag = hashlib.sha256(os.fsencode(locations.state)).hexdigest()[:8]
    places = locations.sandbox(name)
    return ControlAddress(
        name=name,
        socket=locations.runtime / "control" / f"{name}-{tag}.sock",
        link=places.home / "control",
        log=places.log,
    )


@contextmanager
def bindable(path: Path) -> Iterator[str]:
    """Give a name for *path* that fits a socket address, good inside the block only."""
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
