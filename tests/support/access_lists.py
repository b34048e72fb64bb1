"""POSIX access control lists, as the kernel has them in extended attributes."""

import struct

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_OWNER, _USER, _GROUP_OWNER, _GROUP, _MASK, _OTHER = (1 << bit for bit in range(6))
_NOBODY_IN_PARTICULAR = 0xFFFFFFFF


def access_list(
    owner: int, group: int, other: int, *, users: dict[int, int] | None = None, mask: int | None = None
) -> bytes:
    """The value of an attribute: permissions of three bits each; *users* need a *mask*."""
    entries = [(_OWNER, owner, _NOBODY_IN_PARTICULAR)]
    entries += [(_USER, permissions, user) for user, permissions in sorted((users or {}).items())]
    entries.append((_GROUP_OWNER, group, _NOBODY_IN_PARTICULAR))
    if mask is not None:
        entries.append((_MASK, mask, _NOBODY_IN_PARTICULAR))
    entries.append((_OTHER, other, _NOBODY_IN_PARTICULAR))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
