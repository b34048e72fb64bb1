"""`sandboxfs doctor`: checks whether this machine can mount and confine, and what mends a failure.

Every check does the thing it is about (`service/check_machine`). A failure names the one line that mends it;
only those without which there is no mount decide the exit status.
"""

import argparse

from sandboxfs.cli import output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.cli.terminal import caller_context
from sandboxfs.errors import MountFailed
from sandboxfs.service.check_machine import CheckResult, can_mount, check_machine

DESCRIPTION = """\
Find out by doing whether this machine can mount and confine, and say for each failure
what mends it. 'fail' is what keeps a view from being mounted; 'note' is what some
features would want. Leaves nothing behind."""

EXAMPLES = ["sandboxfs doctor", "sandboxfs doctor --json"]


class Arguments(argparse.Namespace):
    json: bool


def parser() -> Parser:
    return verb_parser("doctor", DESCRIPTION, EXAMPLES, [MountFailed])


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    results: list[CheckResult] = []
    for result in check_machine(caller_context(as_json=arguments.json)):
        results.append(result)
        if not arguments.json:
            output.data(f"{result.level:4}  {result.check}: {result.finding}")
            if result.mend:
                output.data(f"      mend: {result.mend}")
    usable = can_mount(results)
    if arguments.json:
        checks = [vars(result) for result in results]
        output.document({"can_mount": usable, "checks": checks})
    else:
        output.note("this machine can mount" if usable else "this machine cannot mount yet")
    return 0 if usable else MountFailed.exit_code
