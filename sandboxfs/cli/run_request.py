"""What can be asked of a run? On the command line and from Python alike."""

from dataclasses import dataclass

from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.confine.choice import Confinement
from sandboxfs.confine.home import Home
from sandboxfs.errors import UsageError
from sandboxfs.policy.config import AuditLevel
from sandboxfs.state.record import SandboxRecord

UNCHANGED = PolicyRequest(roots=True)


@dataclass(frozen=True)
class RunRequest:
    """Where programs are to run and how they are kept in.

    With *writes_logged*, only where the audit log tells every write: something is asserted about them.
    """

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
    writes_logged: bool = False

    def check_log(self, record: SandboxRecord) -> None:
        """Raise `UsageError` if the log of a sandbox would not tell what is needed of it."""
        if self.writes_logged and record.settings.audit.level is AuditLevel.DENIALS:
            raise UsageError(
                f"the log of sandbox '{record.name}' has denials only: nothing can be asserted about writes",
                hint="use --log-level writes; a sandbox that is mounted must be unmounted first",
            )
