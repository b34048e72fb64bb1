"""How does a forked child become the starter of a confined program?

Either through bubblewrap, which runs the starter's text as process 1 of the program's world, or as it is,
with Landlock closing around the program just before it starts. Nothing else that was open stays so.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sandboxfs.confine import bubblewrap, landlock, seccomp, starter, syscalls
from sandboxfs.confine.keeper import Keeper
from sandboxfs.confine.starter import Orders, close_on_start

Become = Callable[[int, Orders], NoReturn]


def through_bubblewrap(
    program: Path, world: bubblewrap.World, *, sizes: bool, keep_from_abstract: bool
) -> Become:
    """Confine with the bubblewrap at *program*; read everything that can fail for want of a file now."""
    text = Path(starter.__file__).read_bytes()
    machine = os.uname().machine
    filtered = seccomp.build_filter(machine) if seccomp.known(machine) else None

    def become(channel: int, orders: Orders) -> NoReturn:
        close_on_start()
        script, written = _in_memory(text), _in_memory(orders.dump())
        filter_descriptor = None if filtered is None else _in_memory(filtered)
        words = bubblewrap.arguments(world, filter_descriptor=filter_descriptor, sizes=sizes)
        inside = _interpreter(f"/proc/self/fd/{script}", str(channel), str(written))
        options = _in_memory(b"\0".join(map(os.fsencode, words)) + b"\0")
        os.set_inheritable(channel, True)
        if keep_from_abstract:
            landlock.keep_from_abstract_sockets()
        # Its environment is its own: the program's comes with the orders, and is none of bubblewrap's.
        os.execve(program, ["bwrap", "--args", str(options), "--", *inside], {"LC_ALL": "C"})  # noqa: S606

    return become


@dataclass(frozen=True)
class Surroundings:
    """What is made for a program before it starts, and taken away when everything of it has ended.

    Both are done by the starter, which outlives a command that is killed.
    """

    make: Callable[[], None]
    remove: Callable[[], None]


def within_landlock(fence: landlock.Fence, abi: int, around: Surroundings) -> Become:
    """Confine with Landlock."""
    machine = os.uname().machine
    # Landlock does not keep a program from sockets in the file system, nor from any network but TCP; and of
    # other processes it keeps it from memory and signals only.
    filtered = None
    if seccomp.known(machine):
        filtered = seccomp.build_filter(machine, local=False, internet=fence.network, alone=False)

    def become(channel: int, orders: Orders) -> NoReturn:
        close_on_start()
        around.make()
        try:
            enclosure = landlock.Enclosure(fence, abi)

            def restrict() -> None:
                enclosure.enter()
                if filtered is not None:
                    syscalls.install_filter(filtered)

            Keeper(channel, orders, restrict).keep()
        finally:
            # What the program made impossible to remove must not change how it ended.
            with suppress(OSError):
                around.remove()
        os._exit(0)

    return become


def unconfined() -> Become:
    """Confine nothing; the program still ends with the run."""

    def become(channel: int, orders: Orders) -> NoReturn:
        close_on_start()
        Keeper(channel, orders).keep()
        os._exit(0)

    return become


def _interpreter(*arguments: str) -> list[str]:
    # -I and -S: nothing of the user's environment or of packages; the text brings all it needs.
    return [os.path.realpath(sys.executable), "-I", "-S", "-B", *arguments]


def _in_memory(content: bytes) -> int:
    descriptor = os.memfd_create("sandboxfs", 0)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
