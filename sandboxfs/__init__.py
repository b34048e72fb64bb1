"""sandboxfs: let any program work on a directory without changing it until a person says so.

`Sandbox` is what a Python program uses, `AsyncSandbox` what one with asyncio does. Both, and the errors, are
imported when they are first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxfs.api import Change, Denied, ListedSandbox, Program, Sandbox
    from sandboxfs.async_api import AsyncProgram, AsyncSandbox
    from sandboxfs.errors import (
        CommitConflict,
        DaemonLost,
        MountFailed,
        NoSuchSandbox,
        SandboxBusy,
        SandboxError,
        TimedOut,
        UsageError,
    )

__all__ = [
    "AsyncProgram",
    "AsyncSandbox",
    "Change",
    "CommitConflict",
    "DaemonLost",
    "Denied",
    "ListedSandbox",
    "MountFailed",
    "NoSuchSandbox",
    "Program",
    "Sandbox",
    "SandboxBusy",
    "SandboxError",
    "TimedOut",
    "UsageError",
    "__version__",
]
__version__ = "0.1.0"

_API = ("Change", "Denied", "ListedSandbox", "Program", "Sandbox")
_ASYNC = ("AsyncProgram", "AsyncSandbox")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sandboxfs' has no attribute {name!r}")
    import importlib

    module = "api" if name in _API else "async_api" if name in _ASYNC else "errors"
    return getattr(importlib.import_module(f"sandboxfs.{module}"), name)
