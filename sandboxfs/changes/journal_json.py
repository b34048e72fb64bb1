"""How are the steps of a transaction written as JSON, and read again?

What is read was written by another process, perhaps of another version: everything is checked, and anything
unknown is refused. Paths are text with Python's surrogates for bytes that are not UTF-8.
"""

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

from sandboxfs.changes.journal import Place, Redress, Steps, Swap
from sandboxfs.changes.steps import Identity
from sandboxfs.layers.replica import Attributes

T = TypeVar("T")
Json = dict[str, object]


class BadJournal(ValueError):
    """What was read is no journal of this version."""


def to_json(steps: Steps) -> Json:
    """Describe *steps* in values that JSON has."""
    return {
        "tag": os.fsdecode(steps.tag),
        "staged": steps.staged,
        "places": [_place_out(place) for place in steps.places],
        "swaps": [_swap_out(swap) for swap in steps.swaps],
        "redresses": [_redress_out(redress) for redress in steps.redresses],
    }


def from_json(found: object) -> Steps:
    """Read what `to_json` described; `BadJournal` for anything else."""
    match found:
        case {
            "tag": str(tag),
            "staged": bool(staged),
            "places": [*places],
            "swaps": [*swaps],
            "redresses": [*redresses],
        }:
            return Steps(
                os.fsencode(tag),
                tuple(map(_place_in, places)),
                tuple(map(_swap_in, swaps)),
                tuple(map(_redress_in, redresses)),
                staged,
            )
        case _:
            raise BadJournal("no steps")


# Identities are written as short arrays: there may be a hundred thousand of them.


def identity_out(identity: Identity | None) -> list[int] | None:
    if identity is None:
        return None
    return [identity.dev, identity.ino, identity.mode, identity.size, identity.mtime_ns]


def identity_in(found: object) -> Identity:
    match found:
        case [int(dev), int(ino), int(mode), int(size), int(mtime_ns)]:
            return Identity(dev, ino, mode, size, mtime_ns)
        case _:
            raise BadJournal("no identity")


def _optional(found: object, read: Callable[[object], T]) -> T | None:
    return None if found is None else read(found)


def _pair_in(found: object) -> tuple[int, int]:
    match found:
        case [int(one), int(other)]:
            return one, other
        case _:
            raise BadJournal("no pair of numbers")


def _place_out(place: Place) -> Json:
    return {
        "before": os.fsdecode(place.before),
        "after": os.fsdecode(place.after),
        "identity": identity_out(place.identity),
        "times": list(place.times),
        "final": None if place.final is None else list(place.final),
        "made": place.made,
    }


def _place_in(found: object) -> Place:
    match found:
        case {
            "before": str(before),
            "after": str(after),
            "identity": identity,
            "times": times,
            "final": final,
            "made": bool(made),
        }:
            return Place(
                os.fsencode(before),
                os.fsencode(after),
                identity_in(identity),
                _pair_in(times),
                _optional(final, _pair_in),
                made,
            )
        case _:
            raise BadJournal("no place")


def _swap_out(swap: Swap) -> Json:
    described: Json = {
        "number": swap.number,
        "place": swap.place,
        "name": os.fsdecode(swap.name),
        "refuge": swap.refuge,
        "old": identity_out(swap.old),
        "new": identity_out(swap.new),
    }
    if swap.came is not None:
        described["came"] = [swap.came[0], os.fsdecode(swap.came[1])]
    if swap.made:
        described["made"] = {os.fsdecode(path): identity_out(one) for path, one in swap.made.items()}
    if swap.in_place:
        described["in_place"] = True
    return described


def _swap_in(found: object) -> Swap:
    match found:
        case {
            "number": int(number),
            "place": int(place),
            "name": str(name),
            "refuge": int(refuge),
            "old": old,
            "new": new,
            **more,
        }:
            return Swap(
                number,
                place,
                os.fsencode(name),
                refuge,
                _optional(old, identity_in),
                _optional(new, identity_in),
                _optional(more.get("came"), _came_in),
                _made_in(more.get("made", {})),
                more.get("in_place") is True,
            )
        case _:
            raise BadJournal("no swap")


def _came_in(found: object) -> tuple[int, bytes]:
    match found:
        case [int(place), str(name)]:
            return place, os.fsencode(name)
        case _:
            raise BadJournal("no origin")


def _made_in(found: object) -> dict[bytes, Identity]:
    if not isinstance(found, dict):
        raise BadJournal("no list of what was made")
    return {os.fsencode(path): identity_in(one) for path, one in found.items()}


def _redress_out(redress: Redress) -> Json:
    return {
        "number": redress.number,
        "place": redress.place,
        "name": os.fsdecode(redress.name),
        "identity": identity_out(redress.identity),
        "before": _attributes_out(redress.before),
        "after": _attributes_out(redress.after),
        "came": redress.came,
    }


def _redress_in(found: object) -> Redress:
    match found:
        case {
            "number": int(number),
            "place": int(place),
            "name": str(name),
            "identity": identity,
            "before": before,
            "after": after,
            "came": bool(came),
        }:
            return Redress(
                number,
                place,
                os.fsencode(name),
                identity_in(identity),
                _attributes_in(before),
                _attributes_in(after),
                came,
            )
        case _:
            raise BadJournal("no change of attributes")


def _attributes_out(attributes: Attributes) -> Json:
    return {
        "mode": attributes.mode,
        "owner": [attributes.uid, attributes.gid],
        "times": [attributes.atime_ns, attributes.mtime_ns],
        "xattrs": {os.fsdecode(name): value.hex() for name, value in attributes.xattrs},
    }


def _attributes_in(found: object) -> Attributes:
    match found:
        case {"mode": int(mode), "owner": owner, "times": times, "xattrs": dict(xattrs)}:
            return Attributes(mode, *_pair_in(owner), *_pair_in(times), tuple(_xattrs_in(xattrs.items())))
        case _:
            raise BadJournal("no attributes")


def _xattrs_in(found: Iterable[tuple[object, object]]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in found:
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadJournal("no extended attribute")
        yield os.fsencode(name), bytes.fromhex(value)
