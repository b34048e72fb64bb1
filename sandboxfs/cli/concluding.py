"""What is said and done when the program of a run has ended?"""

from collections.abc import Sequence
from contextlib import suppress

from sandboxfs.cli import reporting
from sandboxfs.cli.aftermath import Assertions, Deeds, deeds
from sandboxfs.cli.run_options import EXIT_BROKEN, Arguments
from sandboxfs.cli.running import Session
from sandboxfs.cli.views import Beginning


def check(arguments: Arguments) -> None:
    """Raise `UsageError`, before anything is run, for what could not be done in the end."""
    _assertions(arguments).check()
    if arguments.review:
        reporting.check_can_review()


def conclude(arguments: Arguments, session: Session, status: int, beginnings: Sequence[Beginning]) -> int:
    """Tell what happened since *beginnings* and do what is to be done about it; return the exit status."""
    happened = [deeds(one) for one in beginnings]
    broken = _assertions(arguments).broken(happened)
    if not arguments.quiet or broken:
        # Nobody may be there to read it: the terminal may have been closed.
        with suppress(OSError):
            _tell(arguments, status, happened, broken)
    if arguments.json is not None:
        document = {
            "name": session.name,
            "command": arguments.command,
            "status": status,
            "confinement": session.choice.confinement.value,
            "network": arguments.network,
        }
        reporting.write_json(arguments.json, document, happened, broken)
    if arguments.discard or (arguments.commit and status == 0 and not broken):
        reporting.settle(happened, commit=arguments.commit, quiet=arguments.quiet)
    elif arguments.review and not broken:
        reporting.ask(happened)
    return EXIT_BROKEN if broken else status


def _assertions(arguments: Arguments) -> Assertions:
    return Assertions(
        tuple(arguments.assert_no_writes), tuple(arguments.assert_writes_only), arguments.assert_no_denials
    )


def _tell(arguments: Arguments, status: int, happened: list[Deeds], broken: list[str]) -> None:
    decided = arguments.review or (arguments.commit and status == 0)
    reporting.tell(happened, broken, undecided=not arguments.discard and (bool(broken) or not decided))
