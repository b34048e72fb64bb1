"""Run the command line: `python -m sandboxfs VERB …`."""

import sys

from sandboxfs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
