"""An answer is understood whole or is none, whatever a program writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxfs.responder.answer_object import NoAnswer, ProgramAnswer, read_answer
from sandboxfs.service.questions import AnswerTerms

ALLOW = b'{"decision": "allow"}'


def test_an_answer_has_a_decision_and_what_it_is_for() -> None:
    assert read_answer(ALLOW + b"\n") == ProgramAnswer("allow", AnswerTerms())
    whole = {
        "decision": "deny",
        "for": "config/*.env",
        "during": "30m",
        "program": True,
        "tree": False,
        "reason": "use config.example",
    }
    terms = AnswerTerms("config/*.env", "30m", program=True, tree=False, reason="use config.example")
    assert read_answer(json.dumps(whole).encode()) == ProgramAnswer("deny", terms)
    assert read_answer(b'{"decision": "allow", "tree": 4711}').terms.tree == 4711
    assert read_answer(b'{"decision": "allow", "reason": null}').terms.reason is None


def test_a_name_that_is_not_utf_8_comes_as_the_surrogates_of_its_bytes() -> None:
    assert read_answer(b'{"decision": "allow", "for": "a\\udcff"}').terms.extent == "a\udcff"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \n",
        b"allow",
        b'"allow"',
        b"[]",
        b"null",
        b"{}",
        ALLOW + b"x",
        ALLOW * 2,
        ALLOW[:-1],
        b"\xff" + ALLOW,
        b"[" * 10_000,
        b'{"decision": "maybe"}',
        b'{"decision": true}',
        b'{"decision": ["allow"]}',
        b'{"decision": "deny", "decision": "allow"}',
        b'{"decision": "allow", "also": 1}',
        b'{"decision": "allow", "for": null}',
        b'{"decision": "allow", "for": ""}',
        b'{"decision": "allow", "for": 1}',
        b'{"decision": "allow", "for": "a\\u0000b"}',
        b'{"decision": "allow", "for": "\\ud800"}',
        b'{"decision": "allow", "during": 5}',
        b'{"decision": "allow", "during": "for ever"}',
        b'{"decision": "allow", "during": "always"}',
        b'{"decision": "allow", "program": 1}',
        b'{"decision": "allow", "program": "yes"}',
        b'{"decision": "allow", "tree": "yes"}',
        b'{"decision": "allow", "tree": -1}',
        b'{"decision": "allow", "tree": 1.5}',
        b'{"decision": "allow", "tree": NaN}',
        b'{"decision": "allow", "tree": 1' + b"0" * 5000 + b"}",
        b'{"decision": "deny", "reason": 1}',
        b'{"decision": "deny", "reason": "two\\nlines"}',
        b'{"decision": "deny", "reason": "\\u202edesrever"}',
        b'{"decision": "deny", "reason": "\\u001b[2J"}',
        b'{"decision": "deny", "reason": "' + b"x" * 1001 + b'"}',
    ],
)
def test_what_is_not_understood_is_no_answer(text: bytes) -> None:
    with pytest.raises(NoAnswer) as refused:
        read_answer(text)
    # It becomes the reason of a denial.
    assert str(refused.value).isprintable()
    assert str(refused.value).startswith("gave ")


@given(st.binary() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps({"decision": "allow", "for": value}).encode()
))  # fmt: skip
def test_anything_at_all_is_an_answer_or_none(text: bytes) -> None:
    try:
        found = read_answer(text)
    except NoAnswer:
        return
    assert found.decision in ("allow", "deny")
    assert isinstance(found.terms.extent, str)
