"""`sandboxfs config`: what is configured, from where, and whether it is right."""

import argparse
import os

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, add_sandbox_option, verb_parser
from sandboxfs.cli.terminal import caller_context
from sandboxfs.errors import NoSuchSandbox, UsageError
from sandboxfs.paths import counted
from sandboxfs.service.config import (
    ConfigurationCheck,
    EffectivePolicy,
    check_configuration,
    configuration_file,
    effective_policy,
    make_configuration,
)

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
    here = caller_context(as_json=arguments.json)
    named = arguments.file or arguments.config
    if arguments.action == "show":
        found = effective_policy(arguments.workspace, arguments.sandbox, arguments.config, here)
        _show(found, as_json=arguments.json)
    elif arguments.action == "check":
        _tell(check_configuration(named, here), as_json=arguments.json)
    else:
        path = configuration_file(named, here)
        if arguments.action == "init":
            make_configuration(path)
        if arguments.json:
            output.document({"path": str(path), "exists": os.path.lexists(path)})
        else:
            output.data(str(path))
    return 0


def _tell(checked: ConfigurationCheck, *, as_json: bool) -> None:
    """Tell what is wrong; the last of several problems is the error that the verb ends with."""
    found = checked.problems
    if found:
        if not as_json:
            for problem in found[:-1]:
                output.note(f"sandboxfs: {problem}")
        raise UsageError(found[0] if as_json else found[-1], details={"problems": list(found)})
    if as_json:
        output.document(checked.as_json())
    elif not checked.exists:
        output.data(f"{output.shown(checked.path)}: no such file; the defaults apply")
    else:
        output.warnings(checked.warnings)
        count = len(checked.warnings)
        found_so = "no problems" if not count else f"{count} warning{'' if count == 1 else 's'}"
        output.data(f"{output.shown(checked.path)}: {found_so}")


def _show(found: EffectivePolicy, *, as_json: bool) -> None:
    if as_json:
        output.document(found.as_json())
        return
    output.warnings(found.warnings)
    settings = found.settings
    audit = settings.audit
    output.data(
        f"# symlinks: {settings.symlinks}; audit log: {audit.level}, "
        f"{counted(audit.keep, 'file')} of {audit.size} bytes"
    )
    if found.ask:
        output.data(found.ask_toml)
    output.data(found.rules_toml.rstrip("\n"))
