"""The process that serves one sandbox: `python -m sandboxfs.daemon`.

Started by sandboxfs itself, never by hand.
"""

import gc
import os
import sys
from typing import NoReturn


def run() -> NoReturn:
    """End at once when done: taking a large interpreter apart would only keep waiting whoever unmounted."""
    # What is imported is no garbage; looking for some takes a tenth of the time. `serve` has it looked for.
    gc.disable()
    from sandboxfs.daemon.entry import main

    code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
