"""What can be asked of a run? On the command line and from Python alike."""

from dataclasses import dataclass

from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.confine.choice import Confinement
from sandboxfs.confine.home import Home

UNCHANGED = PolicyRequest(roots=True)


@dataclass(frozen=True)
class RunRequest:
    """Where programs are to run and how they are kept in."""

    workspace: str | None = None
    sandbox: str | None = None
    new: bool = False
    config: str | None = None
    policy: PolicyRequest = UNCHANGED
    confine: Confinement = Confinement.AUTO
    network: bool = False
    home: Home = Home.PRIVATE
    variables: tuple[tuple[str, str | None], ...] = ()
    clear_environment: bool = False
