"""Module tables of docs/architecture.md: one row for each module, with the first line of its docstring.

`scripts/fix` writes them; a test compares. Run by itself: `python -m scripts.module_tables`.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
_TABLE = re.compile(r"(<!-- modules of ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rows(room: str) -> list[str]:
    """Return the rows of the table of *room*, sorted by module."""
    found = []
    for path in sorted((ROOT / "sandboxfs" / room).glob("*.py")):
        if path.name != "__init__.py":
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            found.append(f"| `{path.stem}` | {text.partition(chr(10))[0].rstrip('.')} |")
    return found


def with_tables(text: str) -> str:
    """Return the document *text* with every table as it has to be."""

    def table(match: re.Match[str]) -> str:
        lines = ["| module | what is in it |", "|---|---|", *rows(match[2])]
        return match[1] + "\n".join(lines) + "\n" + match[3]

    return _TABLE.sub(table, text)


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
