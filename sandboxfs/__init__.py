"""sandboxfs: let any program work on a directory without changing it until a person says so.

`Sandbox` is what a Python program uses, `AsyncSandbox` what one with asyncio does. Both, and the errors, are
imported when they are first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxfs.api.async_sandbox import AsyncProgram, AsyncQuestionFeed, AsyncSandbox
    from sandboxfs.api.sandbox import (
        Answer,
        Change,
        Denied,
        ListedSandbox,
        OverQuestion,
        Program,
        QuestionFeed,
        Sandbox,
        ShownGrant,
        WaitingQuestion,
    )
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
    "Answer",
    "AsyncProgram",
    "AsyncQuestionFeed",
    "AsyncSandbox",
    "Change",
    "CommitConflict",
    "DaemonLost",
    "Denied",
    "ListedSandbox",
    "MountFailed",
    "NoSuchSandbox",
    "OverQuestion",
    "Program",
    "QuestionFeed",
    "Sandbox",
    "SandboxBusy",
    "SandboxError",
    "ShownGrant",
    "TimedOut",
    "UsageError",
    "WaitingQuestion",
    "__version__",
]
__version__ = "0.1.0"

_ASYNC = ("AsyncProgram", "AsyncQuestionFeed", "AsyncSandbox")
_ERRORS = (
    "CommitConflict",
    "DaemonLost",
    "MountFailed",
    "NoSuchSandbox",
    "SandboxBusy",
    "SandboxError",
    "TimedOut",
    "UsageError",
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'sandboxfs' has no attribute {name!r}")
    import importlib

    module = "errors" if name in _ERRORS else "api.async_sandbox" if name in _ASYNC else "api.sandbox"
    return getattr(importlib.import_module(f"sandboxfs.{module}"), name)
