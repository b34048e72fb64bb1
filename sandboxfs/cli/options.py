"""Which options say what programs may do in a view? They are the same for every verb that mounts."""

import argparse

from sandboxfs.cli.parser import Parser
from sandboxfs.cli.policy_request import PolicyRequest
from sandboxfs.policy.builtin import Preset
from sandboxfs.policy.config import AuditLevel, Symlinks


class PolicyArguments(argparse.Namespace):
    mode: str | None
    preset: str | None
    rule: list[str]
    allow: list[str]
    config: str | None
    symlinks: str | None
    log_level: str | None


def add_policy_options(made: Parser, *, allow: str) -> None:
    """Add the options about policy; *allow* explains `--allow`."""
    policy = made.add_argument_group("policy")
    policy.add_argument(
        "--mode", choices=("ro", "rw"), help="what paths that no rule names may be used for; default: rw"
    )
    policy.add_argument(
        "--preset", choices=[one.value for one in Preset], help="a policy in one word; --mode overrides it"
    )
    policy.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="PATTERN=MODE",
        help="a rule: hide, deny, ro or rw; several are asked in the order given",
    )
    policy.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="PATH[:MODE]",
        help=allow,
    )
    policy.add_argument("--config", metavar="FILE", help="read this file instead of the user's configuration")
    policy.add_argument(
        "--symlinks",
        choices=[one.value for one in Symlinks],
        help="what becomes of links that lead out of the view",
    )
    policy.add_argument(
        "--log-level",
        choices=[one.value for one in AuditLevel],
        help="what the audit log holds; default: writes",
    )


def policy_request(arguments: PolicyArguments, *, roots: bool = False) -> PolicyRequest:
    """Return what *arguments* say about policy; with *roots* places outside the workspace can be allowed."""
    return PolicyRequest(
        mode=arguments.mode,
        preset=arguments.preset,
        rules=tuple(arguments.rule),
        allows=tuple(arguments.allow),
        symlinks=arguments.symlinks,
        log_level=arguments.log_level,
        roots=roots,
    )
