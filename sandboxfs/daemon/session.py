"""What is one mounted lifetime of a sandbox made of?

The overlay behind the guard behind the window, the journal and audit log that hear of every decision, and the
control socket through which the policy is changed and reviews settle the upper.
"""

import os
from typing import TYPE_CHECKING

from sandboxfs.control.address import control_address
from sandboxfs.daemon.control_peers import ViewWatch
from sandboxfs.daemon.control_server import ControlServer
from sandboxfs.daemon.echoing import Echoes
from sandboxfs.daemon.journal import SessionJournal
from sandboxfs.daemon.policing import Policing
from sandboxfs.daemon.reports import changes_report, denials_report, policy_report
from sandboxfs.daemon.settling import Settlements
from sandboxfs.daemon.watch import foreign_mountpoints
from sandboxfs.daemon.watching import Follower
from sandboxfs.fuse.telling import Telling
from sandboxfs.overlay.echo import Echo
from sandboxfs.overlay.guard import Guard
from sandboxfs.overlay.links import LinkGuard
from sandboxfs.overlay.overlay import Overlay
from sandboxfs.state.audit import AuditLog, Level
from sandboxfs.state.audit_file import AUDIT_NAME
from sandboxfs.state.locations import Locations
from sandboxfs.state.record import SandboxRecord

if TYPE_CHECKING:
    from sandboxfs.changes.layers import LayerPaths


class Session:
    """Everything that serves one sandbox, put together."""

    def __init__(self, locations: Locations, record: SandboxRecord, overlay: Overlay) -> None:
        settings = record.settings
        places = locations.sandbox(record.name)
        level = Level(settings.audit.level.value)
        self.overlay = overlay
        self.address = control_address(locations, record.name)
        self._record = record
        self._audit = AuditLog(
            places.home / AUDIT_NAME,
            record.name,
            level=level,
            size_limit=settings.audit.size,
            keep=settings.audit.keep,
        )
        self.journal = SessionJournal(self._audit, level)
        self.policing = Policing(settings.policy, record.workspace, self.journal)
        links = LinkGuard(
            overlay,
            self.journal,
            settings.symlinks,
            os.fsencode(record.workspace),
            os.fsencode(record.mountpoint),
        )
        self.telling = Telling()
        guard = Guard(overlay, self.policing.compiled(), self.journal, links)
        self.defer = guard.defer_records
        self.policing.serve(guard, self.telling.invalidate)
        self.filesystem = Echo(
            guard,
            {
                b"policy": lambda: policy_report(self.policing.policy, record.workspace),
                b"denials": lambda: denials_report(self.journal, self.policing.policy, record.workspace),
                b"changes": lambda: changes_report(
                    _layer_paths(locations, record), record.workspace, self.policing.policy
                ),
            },
        )
        self.settlements = Settlements(overlay, guard, places.commits, self.telling.refresh)
        self._echoes = Echoes(self.filesystem, record.mountpoint)
        self.follower = Follower(overlay.noticing(), guard.decide_anew, self.telling.refresh, self._echoes)
        self.control = ControlServer(
            self.policing.handlers() | self.settlements.handlers(),
            view=ViewWatch(record.mountpoint),
            harmless={"status", "rules", "why"},
        )

    def begin(self) -> None:
        """The view can be used."""
        self._audit.event("mounted", workspace=str(self._record.workspace), pid=os.getpid())

    def close(self) -> None:
        self._echoes.close()
        self.filesystem.close()
        self._audit.event("unmounted")
        self._audit.close()


def _layer_paths(locations: Locations, record: SandboxRecord) -> "LayerPaths":
    """Where the layers are; a mount in the workspace, above all our own, must not be looked at from here."""
    from sandboxfs.changes.layers import LayerPaths, masked_paths

    places = locations.sandbox(record.name)
    masked = [record.mountpoint, locations.state, *foreign_mountpoints(record.workspace, record.mountpoint)]
    return LayerPaths(
        [record.workspace],
        places.upper,
        places.index,
        places.baseline,
        masked_paths(record.workspace, masked),
    )
