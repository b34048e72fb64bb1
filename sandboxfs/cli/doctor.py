"""`sandboxfs doctor`: can this machine do it?

Every check does the thing it is about. A failure names the one line that mends it; only those without which
there is no mount decide the exit status.
"""

import argparse
from dataclasses import dataclass

from sandboxfs.cli import checkup, output
from sandboxfs.cli.parser import Parser, verb_parser
from sandboxfs.errors import MountFailed
from sandboxfs.state.locations import Locations

DESCRIPTION = """\
Find out by doing whether this machine can mount and confine, and say for each failure
what mends it. 'fail' is what keeps a view from being mounted; 'note' is what some
features would want. Leaves nothing behind."""

EXAMPLES = ["sandboxfs doctor", "sandboxfs doctor --json"]


class Arguments(argparse.Namespace):
    json: bool


@dataclass(frozen=True)
class Summary:
    """All results, and whether a mount can be had."""

    results: list[checkup.Result]

    @property
    def can_mount(self) -> bool:
        return not any(result.level == "fail" for result in self.results)


def parser() -> Parser:
    return verb_parser("doctor", DESCRIPTION, EXAMPLES, [MountFailed])


def run(words: list[str]) -> int:
    arguments = parser().parse_args(words, namespace=Arguments())
    results = []
    for result in checkup.examine(Locations.from_environment()):
        results.append(result)
        if not arguments.json:
            output.data(f"{result.level:4}  {result.check}: {result.finding}")
            if result.mend:
                output.data(f"      mend: {result.mend}")
    summary = Summary(results)
    if arguments.json:
        checks = [vars(result) for result in results]
        output.document({"can_mount": summary.can_mount, "checks": checks})
    else:
        output.note("this machine can mount" if summary.can_mount else "this machine cannot mount yet")
    return 0 if summary.can_mount else MountFailed.exit_code
