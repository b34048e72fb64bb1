"""sandboxfs: let any program work on a directory without changing it until a person says so.

`Sandbox` is what a Python program uses; it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxfs.api import Sandbox

__all__ = ["Sandbox", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "Sandbox":
        from sandboxfs.api import Sandbox

        return Sandbox
    raise AttributeError(f"module 'sandboxfs' has no attribute {name!r}")
