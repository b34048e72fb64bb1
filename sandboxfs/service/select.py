"""Sandbox selection: by name, by the current directory, by asking a person, or the project's own.

A verb that changes a workspace or ends a session takes the sandbox that is named, or the one whose workspace
or mountpoint holds the current directory. A verb that only reads may fall back to the only sandbox there is,
and then says which. A companion (`app.home`, `app.lib`) is selected by its name alone.

One project has one sandbox. A run for which none is named goes on in it, mounted or not; while another run is
going on in it, a run takes another sandbox of the same workspace, or makes one.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.control.mount_table import MountTable, SandboxStatus, State, last_use, observe
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.paths import quoted
from sandboxfs.state.locations import Locations
from sandboxfs.state.lock import claim, holder, lifeline_path
from sandboxfs.state.store import PolicyOptions, SandboxRecord, Store, load_family

if TYPE_CHECKING:
    from sandboxfs.service.events import CallerContext, Events, SandboxPrompt

SANDBOX_VARIABLE = "SANDBOXFS_SANDBOX"


def select(
    store: Store,
    name: str | None,
    caller: "CallerContext",
    events: "Events",
    *,
    changing: bool,
    served: bool = False,
) -> SandboxRecord:
    """Return the record of the sandbox that *caller* means, to be changed where *changing* is true.

    *name* is what was said explicitly. With *served*, those that a daemon serves come before all others.
    Where several sandboxes match, the person behind *events* is asked; a program is not asked and gets no
    notes.
    """
    named = name if name is not None else caller.environment.get(SANDBOX_VARIABLE) or None
    if named is not None:
        return store.load(named)
    records = [record for record in store.readable() if record.companion_of is None]
    holding = [] if caller.directory is None else _closest(records, Path(caller.directory))
    if served:
        holding = [one for one in holding if holder(store.places(one.name).lock) is not None] or holding
    if holding:
        return holding[0] if len(holding) == 1 else _chosen(store, holding, caller, events)
    names = _names(store)
    if not names:
        raise NoSuchSandbox(
            "there is no sandbox yet", hint="make one with 'sandboxfs run COMMAND' or 'sandboxfs mount'"
        )
    if changing:
        raise UsageError(
            "which sandbox is meant? the current directory is in no workspace or mountpoint of one; "
            f"there is {', '.join(names)}",
            hint="name one with -s NAME, or go to its workspace",
            details={"sandboxes": names},
        )
    if len(names) > 1:
        return _chosen(store, records, caller, events)
    only = store.load(names[0])
    if not caller.is_program:
        whose = f"'{only.name}' of {quoted(only.workspace)}"
        events.note(f"sandboxfs: this is sandbox {whose}, the only one")
    return only


def select_observed(
    name: str | None, caller: "CallerContext", events: "Events", *, changing: bool, served: bool = False
) -> tuple[Store, SandboxStatus]:
    """Find the sandbox that *caller* means, and say in which state it is."""
    store = Store(Locations.from_environment(caller.environment))
    record = select(store, name, caller, events, changing=changing, served=served)
    return store, observe(store, record, MountTable.read())


def _names(store: Store) -> list[str]:
    """Return the names of all sandboxes but companions; one that cannot be read may be the one meant."""
    companions = {record.name for record in store.readable() if record.companion_of is not None}
    return [name for name in store.names() if name not in companions]


def _closest(records: list[SandboxRecord], here: Path) -> list[SandboxRecord]:
    """Return those of *records* whose workspace or mountpoint most closely holds the directory *here*."""
    depths = {
        record.name: max(
            (len(top.parts) for top in (record.workspace, record.mountpoint) if here.is_relative_to(top)),
            default=0,
        )
        for record in records
    }
    deepest = max(depths.values(), default=0)
    return [record for record in records if deepest and depths[record.name] == deepest]


def _chosen(
    store: Store, records: list[SandboxRecord], caller: "CallerContext", events: "Events"
) -> SandboxRecord:
    """Ask which of *records* is meant, the last used first; `UsageError` where nobody can be asked."""
    newest = sorted(records, key=lambda record: last_use(store, record), reverse=True)
    names = [record.name for record in newest]
    answer = None if caller.is_program else events.ask(_prompt(store, newest))
    if answer is None:
        raise UsageError(
            f"which sandbox is meant? there is {', '.join(names)}",
            hint="name one with -s NAME",
            details={"sandboxes": names},
        )
    if answer not in names:
        raise UsageError("no sandbox was chosen", hint="name one with -s NAME")
    return newest[names.index(answer)]


def _prompt(store: Store, records: list[SandboxRecord]) -> "SandboxPrompt":
    # Imported here: a run asks nobody.
    from sandboxfs.service.events import Candidate, SandboxPrompt

    candidates = tuple(
        Candidate(record.name, record.workspace, last_use(store, record)) for record in records
    )
    return SandboxPrompt("Which sandbox?", tuple(one.name for one in candidates), candidates)


def chosen_sandbox(
    name: str | None, caller: "CallerContext", events: "Events", *, changing: bool
) -> tuple[Store, SandboxRecord]:
    """Return the record of the sandbox that *caller* means, by its *name* or by where the caller stands."""
    store = Store(Locations.from_environment(caller.environment))
    return store, select(store, name, caller, events, changing=changing)


def sandbox_around(here: Path, environment: Mapping[str, str]) -> str | None:
    """Return the name of the sandbox in whose view the directory *here* is, if it is in one."""
    table = MountTable.read()
    mounts = (table.at(place) for place in (here, *here.parents))
    nearest = next((mount for mount in mounts if mount is not None), None)
    if nearest is None or not nearest.ours:
        return None
    store = Store(Locations.from_environment(environment))
    names = (record.name for record in store.readable() if record.mountpoint == nearest.mountpoint)
    return next(names, None)


def sandbox_of_variable(here: Path, environment: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the sandbox that the environment names for a run at *here*, or say why it is not used.

    It is used where *here* is in its workspace or in its view: whoever goes to another project with the
    variable still set means that project. `NoSuchSandbox` where there is none by that name.
    """
    name = environment.get(SANDBOX_VARIABLE)
    if not name:
        return None, None
    record = Store(Locations.from_environment(environment)).load(name)
    if _closest([record], here):
        return name, None
    return None, (
        f"${SANDBOX_VARIABLE} names sandbox '{name}' of {quoted(record.workspace)}, "
        f"which this run in {quoted(here)} does not use"
    )


# The sandbox of a project


@dataclass(frozen=True)
class ProjectSandbox:
    """The sandbox to use, claimed by the descriptor *lock*, or neither; *busy* are those in use by runs."""

    sandbox: SandboxStatus | None
    lock: int | None
    busy: tuple[str, ...]

    @property
    def remark(self) -> str | None:
        """Say in a line which sandbox is used, where it is not plainly a new one."""
        another = f"another run is going on in sandbox '{self.busy[0]}'" if self.busy else None
        if self.sandbox is None:
            return None if another is None else f"{another}: this one has a new sandbox"
        # Imported here: what only looks at a sandbox does without.
        from sandboxfs.service.resolve_policy import in_words

        record = self.sandbox.record
        where = f", mounted at {quoted(record.mountpoint)}" if self.sandbox.held else ""
        made = "" if record.options == PolicyOptions() else f", made with {in_words(record.options)}"
        on = f"this {'one' if another else 'run'} goes on in sandbox '{self.sandbox.name}'{where}{made}"
        return on if another is None else f"{another}: {on}"


def project_sandbox(store: Store, workspace: Path) -> ProjectSandbox:
    """Find the sandbox of *workspace* that a run is to use, the last used first, and claim it."""
    load_family(store, workspace)
    busy: list[str] = []
    for record in sandboxes_of(store, workspace):
        try:
            lock = claim(store.places(record.name))
        except NoSuchSandbox:
            # Another run removed it meanwhile: it was empty.
            continue
        if lock is not None:
            sandbox = observe(store, record, MountTable.read())
            if not _starting_or_ending(store, sandbox):
                return ProjectSandbox(sandbox, lock, tuple(busy))
            os.close(lock)
        busy.append(record.name)
    return ProjectSandbox(None, None, tuple(busy))


def sandboxes_of(store: Store, workspace: Path) -> list[SandboxRecord]:
    """Return the sandboxes of *workspace*, without companions, the last used first."""
    found = [
        record for record in store.readable() if record.workspace == workspace and record.companion_of is None
    ]
    return sorted(found, key=lambda record: last_use(store, record), reverse=True)


def _starting_or_ending(store: Store, sandbox: SandboxStatus) -> bool:
    """Say whether a run is about to claim the sandbox, or its daemon is about to end with it."""
    if not sandbox.held:
        return False
    return sandbox.state != "mounted" or os.path.lexists(lifeline_path(store.places(sandbox.name)))


# Sandboxes as values


@dataclass(frozen=True)
class ListedSandbox:
    """One sandbox: the *workspace* it is of, and where its view is or would be.

    *companion_of* names the sandbox beside whose workspace it serves another directory, if it does.
    """

    name: str
    workspace: Path
    mountpoint: Path
    state: State
    companion_of: str | None = None


def sandboxes(environment: Mapping[str, str]) -> tuple[ListedSandbox, ...]:
    """Return all sandboxes whose record can be read, the last used first."""
    store = Store(Locations.from_environment(environment))
    table = MountTable.read()
    records = sorted(store.readable(), key=lambda record: last_use(store, record), reverse=True)
    return tuple(_listed(observe(store, record, table)) for record in records)


def sandbox_called(name: str, environment: Mapping[str, str]) -> ListedSandbox:
    """Return the sandbox called *name*; `NoSuchSandbox` when there is none."""
    store = Store(Locations.from_environment(environment))
    return _listed(observe(store, store.load(name), MountTable.read()))


def exists(name: str, environment: Mapping[str, str]) -> bool:
    """Say whether there is a sandbox called *name*."""
    return Store(Locations.from_environment(environment)).exists(name)


def _listed(sandbox: SandboxStatus) -> ListedSandbox:
    record = sandbox.record
    return ListedSandbox(record.name, record.workspace, record.mountpoint, sandbox.state, record.companion_of)
