"""Which policy would a sandbox be mounted with?

What the command line, the project's own file, the user's configuration and sandboxfs itself say, put in order
and checked for one workspace. Nothing is created, and whatever is not understood is refused: a sandbox never
starts on a guessed policy.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxfs.cli.places import current_directory, inside, user_path
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import UsageError
from sandboxfs.paths import quoted
from sandboxfs.policy.builtin import Preset
from sandboxfs.policy.config import (
    Allow,
    AuditLevel,
    Symlinks,
    UserConfig,
    read_project_rules,
    read_user_config,
)
from sandboxfs.policy.decide import can_match_in
from sandboxfs.policy.model import Kind, Mode, Rule, Source
from sandboxfs.policy.sources import Assembled, assemble, parse_mode, parse_rule
from sandboxfs.state.settings import Settings

# Where a path in the workspace leads in the view.
Follow = Callable[[str], str]
_MODES = tuple(mode.value for mode in Mode)


@dataclass(frozen=True)
class Resolved:
    """The settings of a mount, and one line for each thing in them that may not be meant.

    *roots* are the places outside the workspace that are allowed, where that was asked for.
    """

    settings: Settings
    warnings: tuple[str, ...] = ()
    roots: tuple[Allow, ...] = ()


def read_config(default: Path, given: str | None) -> UserConfig:
    """Read the file *given* on the command line, which must exist, else the one at *default*."""
    if given is None:
        return read_user_config(default)
    if not given:
        raise UsageError("the configuration file's name is empty")
    path = user_path(given)
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
) -> Resolved:
    """Put the policy of *workspace* together; *environment* is empty unless it chose the workspace."""
    config = config.overridden_by(environment)
    config = replace(config, rules=(*config.rules, *request.more))
    rules = tuple(map(parse_rule, request.rules))
    allows = tuple(
        _allow(text, workspace, mountpoint, follow, roots=request.roots) for text in request.allows
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
    settings = Settings(
        assembled.policy,
        config.symlinks if request.symlinks is None else Symlinks(request.symlinks),
        config.audit
        if request.log_level is None
        else replace(config.audit, level=AuditLevel(request.log_level)),
    )
    warnings = _warnings(assembled, strangers, typed=bool(rules or allows), roots=request.roots)
    return Resolved(settings, tuple(warnings), assembled.roots if request.roots else ())


def _warnings(assembled: Assembled, strangers: list[Rule], *, typed: bool, roots: bool) -> Iterator[str]:
    if typed and not assembled.policy.enabled:
        yield "rules are off: --rule and --allow are not enforced until 'sandboxfs enable'"
    yield from assembled.warnings
    for rule in strangers:
        if rule.source.kind is Kind.PROJECT:
            yield f"{rule.source}: rule {quoted(str(rule))} names nothing in the workspace"
    for allow in () if roots else assembled.roots:
        yield (
            f"{allow.source}: {quoted(allow.path)} is not in the workspace and is left out; "
            "'sandboxfs run' serves other places as well"
        )


def _refuse_strangers(strangers: list[Rule], workspace: Path) -> None:
    # In the user's configuration such a rule is for other workspaces; here it was typed for this one.
    for rule in strangers:
        if rule.source.kind is Kind.COMMAND_LINE:
            raise UsageError(
                f"{rule.source} {quoted(str(rule))}: it names nothing in the workspace {quoted(workspace)}",
                hint="a pattern that starts with '/' or '~' is a place on this machine; "
                "one that starts without is inside the workspace",
            )


def outside_allows(texts: tuple[str, ...], workspace: Path, mountpoint: Path) -> list[Allow]:
    """Read what `--allow` says, and return those that name a place outside of *workspace*."""
    read = [_allow(text, workspace, mountpoint, str, roots=True) for text in texts]
    return [allow for allow in read if not Path(allow.path).is_relative_to(workspace)]


def _allow(text: str, workspace: Path, mountpoint: Path | None, follow: Follow, *, roots: bool) -> Allow:
    """Read `PATH[:MODE]`, as `--allow` takes it; with *roots* a path outside the workspace is fine."""
    path, colon, word = text.rpartition(":")
    mode = Mode.RW
    if colon and word in _MODES:
        mode = parse_mode(word, f"--allow {quoted(text)}")
    else:
        path = text
    if not path:
        raise UsageError(f"--allow {quoted(text)}: expected PATH or PATH:MODE")
    place = inside(path, workspace, mountpoint, current_directory(), MountTable.read())
    source = Source(Kind.COMMAND_LINE, "--allow")
    if place is not None:
        return Allow(str(workspace / follow(place)), mode, source)
    if not roots:
        raise UsageError(
            f"--allow {quoted(text)}: not in the workspace {quoted(workspace)}; "
            "'sandboxfs run' serves other places as well"
        )
    return Allow(str(user_path(path)), mode, source)
