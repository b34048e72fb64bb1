"""How does a patch carry bytes that are no text?

As git's binary patch: the whole new content, then the whole old one for the way back, each deflated and
written in base 85, up to 52 bytes on a line behind a letter that says how many.
"""

import base64
import hashlib
import string
import zlib

_BYTES_A_LINE = 52
_LETTERS = (string.ascii_uppercase + string.ascii_lowercase).encode()
_CHUNK = _BYTES_A_LINE // 4 * 5


def blob_id(data: bytes) -> bytes:
    """Return the name that git gives *data*, in full."""
    digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest().encode()


def binary_patch(old: bytes, new: bytes) -> bytes:
    """Return the `GIT binary patch` section that turns *old* into *new* and back."""
    return b"GIT binary patch\n" + _literal(new) + b"\n" + _literal(old) + b"\n"


def _literal(data: bytes) -> bytes:
    deflated = zlib.compress(data)
    encoded = base64.b85encode(deflated, pad=True)
    lines = [b"literal %d\n" % len(data)]
    for number, start in enumerate(range(0, len(encoded), _CHUNK)):
        size = min(_BYTES_A_LINE, len(deflated) - number * _BYTES_A_LINE)
        lines.append(_LETTERS[size - 1 : size] + encoded[start : start + _CHUNK] + b"\n")
    return b"".join(lines)
