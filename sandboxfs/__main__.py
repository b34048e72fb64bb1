"""Run the command line: `python -m sandboxfs VERB …`."""

from sandboxfs.cli.main import command

if __name__ == "__main__":
    command()
