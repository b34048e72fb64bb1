"""What can this machine do, and what becomes of a test that needs more?

Such a test is skipped with the exact reason; where SANDBOXFS_REQUIRE_FUSE is 1, it fails instead, so that a
machine which should test everything cannot silently test nothing.
"""

import os
import shutil
from functools import cache
from typing import NoReturn

import pytest

REQUIRE = "SANDBOXFS_REQUIRE_FUSE"


@cache
def why_no_fuse() -> str | None:
    """The reason why nothing can be mounted here, or None."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"/dev/fuse cannot be opened: {error.strerror}"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return None


def missing(reason: str) -> NoReturn:
    """Skip the test that is running, or fail it where nothing may be missing."""
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(f"{reason} ({REQUIRE}=1)", pytrace=False)
    pytest.skip(reason)


def require_fuse() -> None:
    if reason := why_no_fuse():
        missing(reason)


def require_tool(name: str) -> str:
    """The full path of a program that the test runs."""
    path = shutil.which(name)
    if path is None:
        missing(f"{name} is not installed")
    return path


def require_root() -> None:
    """Skip the test unless it runs as root; an ordinary user is a normal way to run the tests."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


def report() -> list[str]:
    """The lines that tell at the top of a run what will be tested."""
    fuse = why_no_fuse()
    tools = ", ".join(f"{name} {'yes' if shutil.which(name) else 'no'}" for name in ("bwrap", "git", "npm"))
    return [f"sandboxfs: fuse {'no: ' + fuse if fuse else 'yes'}; {tools}; uid {os.geteuid()}"]
