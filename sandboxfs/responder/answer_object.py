"""Answer object: what a command or a webhook says to one question, read strictly.

Nothing that such a program writes reaches the daemon but the values of an object that was understood whole.
What is not understood is a denial, whose reason says so in words of our own.
"""

import json
import os
from dataclasses import dataclass
from typing import NoReturn

from sandboxfs.errors import UsageError
from sandboxfs.service.questions import AnswerTerms

ANSWER_SIZE = 16 * 1024
"""Bytes of the longest answer."""
_LONGEST_REASON = 1000
_KEYS = {"decision", "for", "during", "program", "tree", "reason"}


class NoAnswer(Exception):
    """No answer came, or one that makes no sense: half a sentence about whoever was asked."""


@dataclass(frozen=True)
class ProgramAnswer:
    """What a program says to a question."""

    decision: str
    terms: AnswerTerms


def read_answer(text: bytes) -> ProgramAnswer:
    """Read an answer; raise `NoAnswer` unless all of *text* is one."""
    if not text.strip():
        raise NoAnswer("gave no answer")
    try:
        found = json.loads(text.decode(), object_pairs_hook=_distinct, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NoAnswer("gave an answer that is not one JSON object") from error
    if not isinstance(found, dict):
        raise NoAnswer("gave an answer that is not one JSON object")
    unknown = found.keys() - _KEYS
    if unknown:
        raise NoAnswer("gave an answer with an unknown key")
    decision = found.get("decision")
    if decision not in ("allow", "deny"):
        raise NoAnswer("gave an answer whose decision is neither allow nor deny")
    terms = AnswerTerms(
        _text(found, "for", "once"),
        _text(found, "during", "session"),
        _flag(found, "program"),
        _tree(found),
        _reason(found),
    )
    if terms.during == "always":
        # What is written to the configuration for good is for a person to say.
        raise NoAnswer("gave an answer for longer than the session")
    try:
        terms.checked()
    except UsageError as error:
        raise NoAnswer("gave an answer for a time that makes no sense") from error
    return ProgramAnswer(decision, terms)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)


def _text(found: dict[str, object], key: str, default: str) -> str:
    value = found.get(key, default)
    if not isinstance(value, str) or not value or "\0" in value:
        raise NoAnswer(f"gave an answer whose {key} is no text")
    try:
        # Bytes of names that are not UTF-8 come as the surrogates that stand for them, and no others.
        os.fsencode(value)
    except UnicodeEncodeError as error:
        raise NoAnswer(f"gave an answer whose {key} is no text") from error
    return value


def _flag(found: dict[str, object], key: str) -> bool:
    value = found.get(key, False)
    if not isinstance(value, bool):
        raise NoAnswer(f"gave an answer whose {key} is neither true nor false")
    return value


def _tree(found: dict[str, object]) -> bool | int:
    value = found.get("tree", False)
    if not isinstance(value, int) or value < 0:
        raise NoAnswer("gave an answer whose tree is neither true, false nor a process")
    return value


def _reason(found: dict[str, object]) -> str | None:
    value = found.get("reason")
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _LONGEST_REASON or not value.isprintable():
        raise NoAnswer("gave an answer whose reason is not one line of text")
    return value
