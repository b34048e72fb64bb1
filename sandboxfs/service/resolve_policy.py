"""Policy resolution: what was asked for, now and when the sandbox was made, and what would be in force.

What the command line, the project's own file, the user's configuration and sandboxfs itself say, put in order
and checked for one workspace. Nothing is created, and whatever is not understood is refused: a sandbox never
starts on a guessed policy. What a sandbox was made with stays in force when its daemon died, or when another
command mounts it: otherwise it would be served under looser rules.

A rule is about the place to which a path leads: a program that goes through a symlink is judged where the
link leads, so links on the way are followed, as the view has them. What is listed as changed is named by its
own name instead (`workspace.place_in`).
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandboxfs.control.mount_table import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.builtin import Preset
from sandboxfs.policy.config import (
    Allow,
    AuditLevel,
    PolicyRequest,
    Symlinks,
    UserConfig,
    read_project_rules,
    read_user_config,
)
from sandboxfs.policy.model import Mode, Rule, RuleSource, SourceKind
from sandboxfs.policy.sources import AssembledPolicy, assemble, can_match_in, parse_mode, parse_rule
from sandboxfs.service.workspace import inside, user_path
from sandboxfs.state.store import PolicyOptions, PolicySettings, SandboxRecord, Store

if TYPE_CHECKING:
    from sandboxfs.upper.walk import SymlinkResolver

# Where a path in the workspace leads in the view.
Follow = Callable[[str], str]
_MODES = tuple(mode.value for mode in Mode)


@dataclass(frozen=True)
class ResolvedPolicy:
    """The settings of a mount, and one line for each thing in them that may not be meant.

    *roots* are the places outside the workspace that are allowed, where that was asked for.
    """

    settings: PolicySettings
    warnings: tuple[str, ...] = ()
    roots: tuple[Allow, ...] = ()


def read_config(default: Path, given: str | None, current: str | None = None) -> UserConfig:
    """Read the file *given* on the command line, which must exist, else the one at *default*."""
    if given is None:
        return read_user_config(default)
    if not given:
        raise UsageError("the configuration file's name is empty")
    path = user_path(given, current)
    if not os.path.lexists(path):
        raise UsageError(f"cannot read configuration {quoted(path)}: no such file")
    return read_user_config(path)


def resolve(
    workspace: Path,
    mountpoint: Path | None,
    config: UserConfig,
    request: PolicyRequest,
    environment: Mapping[str, str],
    follow: Follow = str,
    current: str | None = None,
) -> ResolvedPolicy:
    """Put the policy of *workspace* together; *environment* is empty unless it chose the workspace.

    *current* is the directory in which the command was given.
    """
    config = config.overridden_by(environment)
    config = replace(config, rules=(*config.rules, *request.more))
    rules = tuple(map(parse_rule, request.rules))
    allows = tuple(
        _allow(text, workspace, mountpoint, follow, current, roots=request.roots) for text in request.allows
    )
    project = read_project_rules(workspace)
    assembled = assemble(
        str(workspace),
        config,
        project,
        rules,
        allows=allows,
        preset=None if request.preset is None else Preset(request.preset),
        mode=None if request.mode is None else Mode(request.mode),
    )
    strangers = [rule for rule in assembled.policy.rules if not can_match_in(rule, str(workspace))]
    if not request.shared:
        _refuse_strangers(strangers, workspace)
    settings = PolicySettings(
        assembled.policy,
        config.symlinks if request.symlinks is None else Symlinks(request.symlinks),
        config.audit
        if request.log_level is None
        else replace(config.audit, level=AuditLevel(request.log_level)),
        config.ask_timeout,
        config.asked_programs.given(request.ask_command, request.ask_url),
    )
    warnings = _warnings(assembled, strangers, typed=bool(rules or allows), roots=request.roots)
    return ResolvedPolicy(settings, tuple(warnings), assembled.roots if request.roots else ())


def _warnings(
    assembled: AssembledPolicy, strangers: list[Rule], *, typed: bool, roots: bool
) -> Iterator[str]:
    if typed and not assembled.policy.enabled:
        yield "rules are off: --rule and --allow are not enforced until 'sandboxfs enable'"
    yield from assembled.warnings
    for rule in strangers:
        if rule.source.kind is SourceKind.PROJECT:
            yield f"{rule.source}: rule {quoted(str(rule))} names nothing in the workspace"
    for allow in () if roots else assembled.roots:
        yield (
            f"{allow.source}: {quoted(allow.path)} is not in the workspace and is left out; "
            "'sandboxfs run' serves other places as well"
        )


def _refuse_strangers(strangers: list[Rule], workspace: Path) -> None:
    # In the user's configuration such a rule is for other workspaces; here it was typed for this one.
    for rule in strangers:
        if rule.source.kind is SourceKind.COMMAND_LINE:
            raise UsageError(
                f"{rule.source} {quoted(str(rule))}: it names nothing in the workspace {quoted(workspace)}",
                hint="a pattern that starts with '/' or '~' is a place on this machine; "
                "one that starts without is inside the workspace",
            )


def divided_allows(
    texts: tuple[str, ...], workspace: Path, mountpoint: Path | None, current: str | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide what `--allow` says into places in *workspace*, made absolute, and all others."""
    inner, others = [], []
    for text in texts:
        allow = _allow(text, workspace, mountpoint, str, current, roots=True)
        if Path(allow.path).is_relative_to(workspace):
            inner.append(f"{allow.path}:{allow.mode.value}")
        else:
            others.append(text)
    return tuple(inner), tuple(others)


def outside_allows(
    texts: tuple[str, ...], workspace: Path, mountpoint: Path, current: str | None
) -> list[Allow]:
    """Read what `--allow` says, and return those that name a place outside of *workspace*."""
    read = [_allow(text, workspace, mountpoint, str, current, roots=True) for text in texts]
    return [allow for allow in read if not Path(allow.path).is_relative_to(workspace)]


def _allow(
    text: str, workspace: Path, mountpoint: Path | None, follow: Follow, current: str | None, *, roots: bool
) -> Allow:
    """Read `PATH[:MODE]`, as `--allow` takes it; with *roots* a path outside the workspace is fine."""
    path, colon, word = text.rpartition(":")
    mode = Mode.RW
    if colon and word in _MODES:
        mode = parse_mode(word, f"--allow {quoted(text)}")
    else:
        path = text
    if not path:
        raise UsageError(f"--allow {quoted(text)}: expected PATH or PATH:MODE")
    place = inside(path, workspace, mountpoint, current, MountTable.read())
    source = RuleSource(SourceKind.COMMAND_LINE, "--allow")
    if place is not None:
        return Allow(str(workspace / follow(place)), mode, source)
    if not roots:
        raise UsageError(
            f"--allow {quoted(text)}: not in the workspace {quoted(workspace)}; "
            "'sandboxfs run' serves other places as well"
        )
    return Allow(str(user_path(path, current)), mode, source)


_WORDS = {"rules": "rule", "allows": "allow", "read_only": "read-only"}


def asked_options(
    policy: PolicyRequest,
    config: str | None,
    workspace: Path,
    mountpoint: Path | None,
    current: str | None,
    *,
    read_only: bool,
) -> PolicyOptions:
    """Return what a command given in the directory *current* says about policy, as a record keeps it."""
    return PolicyOptions(
        policy.mode,
        policy.preset,
        policy.rules,
        divided_allows(policy.allows, workspace, mountpoint, current)[0],
        policy.symlinks,
        None if config is None else str(user_path(config, current)),
        read_only,
    )


def options_in_force(
    asked: PolicyOptions, previous: SandboxRecord | None, *, replaceable: bool
) -> PolicyOptions:
    """Return the options to serve under; options that differ from those of *previous* are refused.

    *replaceable* when those of *previous* protect nothing, or are to be forgotten.
    """
    if previous is None:
        return asked
    # One that was made without options is no exception: what is looser would hold from then on.
    recorded = previous.options
    if says_the_same(asked, recorded):
        return recorded
    if replaceable:
        return asked
    raise UsageError(
        f"sandbox '{previous.name}' was made with {in_words(recorded)}, "
        "and is not served under other options",
        hint="leave the options about policy out, make another sandbox, or replace them: --replace-policy",
        details={"name": previous.name, "options": _words(recorded)},
    )


def says_the_same(asked: PolicyOptions, recorded: PolicyOptions) -> bool:
    """Say whether each option that was *asked* for is as it was *recorded*; those left out are."""
    said = [one.name for one in fields(asked) if getattr(asked, one.name) not in (None, (), False)]
    return all(getattr(asked, name) == getattr(recorded, name) for name in said)


def with_options(
    policy: PolicyRequest,
    options: PolicyOptions,
    workspace: Path,
    mountpoint: Path | None,
    current: str | None,
) -> PolicyRequest:
    """Return *policy* with *options* in place of its own; places outside the workspace stay."""
    outside = divided_allows(policy.allows, workspace, mountpoint, current)[1]
    return replace(
        policy,
        mode=options.mode,
        preset=options.preset,
        rules=options.rules,
        allows=(*options.allows, *outside),
        symlinks=options.symlinks,
    )


def _words(options: PolicyOptions) -> list[str]:
    words = []
    for one in fields(options):
        word = f"--{_WORDS.get(one.name, one.name)}"
        match getattr(options, one.name):
            case str(value):
                words.append(f"{word} {quoted(value)}")
            case True:
                words.append(word)
            case (*values,):
                words += [f"{word} {quoted(value)}" for value in values]
            case _:
                pass
    return words


def in_words(options: PolicyOptions) -> str:
    """Return *options* as they would be typed."""
    return " ".join(_words(options)) or "no options about policy"


def followed(store: Store, record: SandboxRecord, place: str) -> tuple[str, bool]:
    """Return where *place* leads in the view of *record*, and whether a directory is shown there.

    What cannot be looked at stands for itself.
    """
    upper = store.places(record.name).upper
    try:
        with _ways(store, upper, record.workspace, record.mountpoint) as ways:
            found = ways.followed(os.fsencode(place))
            return os.fsdecode(found), ways.is_directory(found)
    except OSError:
        return place, False


def came_from(store: Store, record: SandboxRecord, place: str) -> list[str]:
    """Return where else the workspace has what *place* shows, because of directories that were moved."""
    upper = store.places(record.name).upper
    try:
        with _ways(store, upper, record.workspace, record.mountpoint) as ways:
            return [os.fsdecode(origin) for origin in ways.origins(os.fsencode(place))]
    except OSError:
        return []


def followed_before(store: Store, workspace: Path, previous: SandboxRecord | None, place: str) -> str:
    """Return where *place* will lead in a view of *workspace*, which shows what *previous* has."""
    if previous is not None:
        return followed(store, previous, place)[0]
    try:
        with _ways(store, None, workspace, None) as ways:
            return os.fsdecode(ways.followed(os.fsencode(place)))
    except OSError:
        return place


@contextmanager
def _ways(
    store: Store, upper: Path | None, workspace: Path, mountpoint: Path | None
) -> Iterator["SymlinkResolver"]:
    # Imported here: most mounts name no path.
    from sandboxfs.control.mount_table import mounts_below
    from sandboxfs.hostfs.directory import HostDir
    from sandboxfs.hostfs.tree import DirTree
    from sandboxfs.upper.sandbox_layers import masked_paths
    from sandboxfs.upper.walk import SymlinkResolver

    tops = [workspace] if mountpoint is None else [mountpoint, workspace]
    kept_away = [store.locations.state, *tops]
    kept_away += [mount.mountpoint for mount in mounts_below(workspace) if mount.ours]
    lower = DirTree(HostDir.at(workspace))
    try:
        above = None if upper is None else DirTree(HostDir.at(upper), ours=True)
        try:
            yield SymlinkResolver(
                above, lower, masked_paths(workspace, kept_away), [os.fsencode(top) for top in tops]
            )
        finally:
            if above is not None:
                above.close()
    finally:
        lower.close()
