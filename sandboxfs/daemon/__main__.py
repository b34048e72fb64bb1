"""The process that serves one sandbox: `python -m sandboxfs.daemon`.

sandboxfs itself starts the daemon; a person never does.
"""

import gc
import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """Serve, then exit at once: tearing a large interpreter down would only delay the unmounting command."""
    # Imported modules are no garbage; collecting takes a tenth of the time. `serve` turns the collector on.
    gc.disable()
    from sandboxfs.daemon.main import main

    code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
