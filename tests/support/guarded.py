"""How does a test get a mount with rules, and how does it change them while the mount is served?

The rules are those of `--rule`. `ask` talks to the daemon over its control socket, as the command line does.
"""

import os
from collections.abc import Callable
from pathlib import Path

from sandboxfs.control.control_socket import ControlAddress, ask, control_address
from sandboxfs.state.locations import STATE_VARIABLE, Locations
from tests.support.mount_driver import MountDriver
from tests.support.mounted import Area, SharedMount
from tests.support.tree import Tree, build

MakeArea = Callable[[Tree], Area]


def rule_options(*rules: str) -> list[str]:
    """The options of `mount` for rules written as PATTERN=MODE."""
    return [word for rule in rules for word in ("--rule", rule)]


class GuardedMount(MountDriver):
    """A mount whose policy begins with *rules*; *options* are further ones of `mount`."""

    def __init__(self, place: Path, workspace: Path, *rules: str, options: tuple[str, ...] = ()) -> None:
        MountDriver.__init__(self, place, workspace, *rule_options(*rules), *options)

    @property
    def address(self) -> ControlAddress:
        environment = os.environ | {STATE_VARIABLE: str(self.state)}
        return control_address(Locations.from_environment(environment), "test")

    def ask(self, verb: str, **arguments: str) -> object:
        """The daemon's answer; once it is there, whatever it changed is in force."""
        return ask(self.address, verb, arguments)

    def allow(self, path: str, mode: str) -> None:
        """Put a path of the view under another mode, for the rest of the session."""
        self.ask("allow", path=path, mode=mode)


class SharedGuardedMount(GuardedMount, SharedMount):
    """One for the tests of a module, each in an area of its own: its rules have to hold at any depth."""

    def __init__(self, place: Path, *rules: str) -> None:
        self.areas: list[Area] = []
        GuardedMount.__init__(self, place, build(place / "workspace", {}), *rules)
