"""How are things in the workspace called that are there for the moment of a commit only?

What a commit or undo puts into the workspace is made beside its target under such a name, and what it takes
away goes by one until it is put aside. They are nobody's files: the view shows none of them, whoever is just
committing, and whoever was killed at it.
"""

import re

_PREFIX = b".sandboxfs-"
_NAME = re.compile(rb"\.sandboxfs-[0-9a-f]{8}-[0-9]+")


def temporary_name(tag: bytes, number: int) -> bytes:
    """The name of step *number* of the transaction that *tag*, eight hexadecimal digits, belongs to."""
    return b"%s%s-%d" % (_PREFIX, tag, number)


def is_temporary(name: bytes) -> bool:
    return name.startswith(_PREFIX) and _NAME.fullmatch(name) is not None
