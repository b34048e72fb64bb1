"""`sandboxfs config`: what is configured, from where, and is it right?

No file that exists is ever written: `init` makes one, and people change it.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from sandboxfs.cli import output
from sandboxfs.cli.checking import is_project_file, problems
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.places import current_directory, user_path
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.cli.resolving import Resolved, read_config, resolve
from sandboxfs.control.mounts import MountTable
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.paths import make_directories, quoted
from sandboxfs.policy.answers import described_rule
from sandboxfs.policy.config import WORKSPACE_VARIABLE, UserConfig, read_user_config
from sandboxfs.policy.decide import can_match_in
from sandboxfs.policy.sources import effective_toml
from sandboxfs.policy.template import TEMPLATE
from sandboxfs.state.locations import Locations
from sandboxfs.state.store import Store

DESCRIPTION = """\
show   the policy that a mount would have: every rule in the order in which it is asked,
       each with where it came from
init   write a commented configuration file; one that exists is left alone
path   print where the configuration file is, or would be
check  read FILE, or the configuration, and report all that is wrong with it

'show' is about --workspace, or the sandbox's workspace with -s or when the current
directory is in it, else $SANDBOXFS_WORKSPACE, 'root' of the configuration, or the
current directory."""

EXAMPLES = [
    "sandboxfs config show",
    "sandboxfs config show --workspace ~/projects/app --json",
    "sandboxfs config init",
    "sandboxfs config check .sandboxfs.toml",
]

ACTIONS = ("show", "init", "path", "check")


class Arguments(argparse.Namespace):
    action: str
    file: str | None
    sandbox: str | None
    workspace: str | None
    config: str | None
    json: bool


def parser() -> Parser:
    made = verb_parser("config", DESCRIPTION, EXAMPLES, [NoSuchSandbox])
    made.add_argument("action", choices=ACTIONS, metavar="ACTION", help="show, init, path or check")
    made.add_argument("file", nargs="?", metavar="FILE", help="with 'check': the file to read")
    add_sandbox_option(made)
    made.add_argument("--workspace", metavar="DIR", help="with 'show': the workspace meant")
    made.add_argument("--config", metavar="FILE", help="this file instead of the user's configuration")
    return made


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    if arguments.file is not None and arguments.action != "check":
        raise UsageError(f"'config {arguments.action}' takes no file", hint="see 'sandboxfs config --help'")
    if arguments.action != "show" and (arguments.sandbox or arguments.workspace is not None):
        raise UsageError("-s and --workspace are for 'config show'")
    locations = Locations.from_environment()
    named = arguments.file or arguments.config
    path = locations.config if named is None else user_path(named)
    if arguments.action == "show":
        _show(arguments, locations)
    elif arguments.action == "check":
        _check(path, as_json=arguments.json)
    else:
        made = arguments.action == "init"
        if made:
            _init(path)
        if arguments.json:
            output.document({"path": str(path), "exists": os.path.lexists(path)})
        else:
            output.data(str(path))
    return 0


# init


def _init(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{quoted(path)} exists already", hint="edit it, or name another file with --config")
    try:
        make_directories(path.parent)
        # Exclusive: what a person wrote is never overwritten, nor a link followed.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(TEMPLATE)
    except OSError as error:
        raise UsageError(f"cannot write {quoted(path)}: {error.strerror}") from error


# check


def _check(path: Path, *, as_json: bool) -> None:
    if not os.path.lexists(path):
        raise UsageError(f"cannot read configuration {quoted(path)}: no such file")
    found = problems(path)
    if found:
        *others, last = found
        if not as_json:
            for problem in others:
                output.note(f"sandboxfs: {problem}")
        raise UsageError(last if not as_json else found[0], details={"problems": found})
    warnings = _warnings(path)
    if as_json:
        output.document({"path": str(path), "problems": [], "warnings": list(warnings)})
    else:
        output.warnings(warnings)
        count = len(warnings)
        found_so = "no problems" if not count else f"{count} warning{'' if count == 1 else 's'}"
        output.data(f"{output.shown(path)}: {found_so}")


def _warnings(path: Path) -> tuple[str, ...]:
    """What reads well and may still not be meant, for the workspace that the file is about."""
    if is_project_file(path):
        return resolve(path.parent.resolve(), None, UserConfig(), PolicyRequest(), {}).warnings
    config = read_user_config(path)
    workspace = config.root or Path(current_directory() or "/")
    return resolve(workspace, None, config, PolicyRequest(), {}).warnings


# show


def _show(arguments: Arguments, locations: Locations) -> None:
    config = read_config(locations.config, arguments.config)
    workspace, environment = _workspace(arguments, locations, config)
    resolved = resolve(workspace, None, config, PolicyRequest(), environment)
    if arguments.json:
        output.document(_described(workspace, resolved))
        return
    output.warnings(resolved.warnings)
    settings = resolved.settings
    audit = settings.audit
    output.data(
        f"# symlinks: {settings.symlinks}; audit log: {audit.level}, {audit.keep} files of {audit.size} bytes"
    )
    output.data(effective_toml(settings.policy, str(workspace)).rstrip("\n"))


def _described(workspace: Path, resolved: Resolved) -> dict[str, object]:
    settings = resolved.settings
    policy = settings.policy
    audit = settings.audit
    return {
        "workspace": str(workspace),
        "mode": policy.mode.value,
        "mode_source": str(policy.mode_source),
        "enabled": policy.enabled,
        "symlinks": settings.symlinks.value,
        "log": {"level": audit.level.value, "size": audit.size, "keep": audit.keep},
        "rules": [
            described_rule(rule) | {"in_workspace": can_match_in(rule, str(workspace))}
            for rule in (*policy.rules, policy.root_rule)
        ],
        "warnings": list(resolved.warnings),
    }


def _workspace(
    arguments: Arguments, locations: Locations, config: UserConfig
) -> tuple[Path, Mapping[str, str]]:
    """Choose the workspace, and return it with the environment if that chose it."""
    if arguments.workspace is not None:
        if arguments.sandbox is not None:
            raise UsageError("name either a workspace or a sandbox, not both")
        return _directory(arguments.workspace), {}
    store = Store(locations)
    named = arguments.sandbox or os.environ.get("SANDBOXFS_SANDBOX")
    if named:
        return store.load(named).workspace, {}
    current = current_directory()
    around = _around(store, current)
    if around is not None:
        return around, {}
    if os.environ.get(WORKSPACE_VARIABLE):
        return _directory(os.environ[WORKSPACE_VARIABLE]), os.environ
    if config.root is not None:
        return MountTable.read().resolve(config.root), {}
    return _directory(current or "/"), {}


def _around(store: Store, current: str | None) -> Path | None:
    """Return the workspace of the sandbox whose workspace or view most closely holds *current*."""
    if current is None:
        return None
    held = {
        place: record.workspace
        for record in store.readable()
        for place in (record.workspace, record.mountpoint)
        if Path(current).is_relative_to(place)
    }
    return held[max(held, key=lambda place: len(place.parts))] if held else None


def _directory(given: str) -> Path:
    if not given:
        raise UsageError("the workspace is empty")
    try:
        path = MountTable.read().resolve(user_path(given))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use workspace {quoted(given)}: {error}") from error
    if not path.is_dir():
        raise UsageError(f"cannot use workspace {quoted(path)}: no such directory")
    return path
