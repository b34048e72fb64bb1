"""The process that asks a command or a webhook: `python -m sandboxfs.responder`.

sandboxfs itself starts the responder; a person never does.
"""

import os
import sys


def run() -> None:
    """Leave the process that started this one alone with its own children, then answer questions."""
    # First of all: whoever mounts waits for the first process.
    if os.fork():
        os._exit(0)
    from sandboxfs.responder.session import main

    main(int(sys.argv[1]), int(sys.argv[2]))


if __name__ == "__main__":
    run()
