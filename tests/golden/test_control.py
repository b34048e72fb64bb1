"""What earlier versions say over the control socket: requests of an old client, answers of an old daemon."""

import json
import os
from pathlib import Path

import pytest

from sandboxfs.control.control_socket import encode_request, parse_answer, parse_request
from sandboxfs.errors import SandboxError
from sandboxfs.upper.edits import operation_from_json, operation_to_json, outcome_from_json, outcome_to_json
from tests.golden.checking import HERE, load
from tests.golden.live import MOUNT, REQUESTS, WORKSPACE, ask
from tests.golden.operations import OPERATIONS, OUTCOMES
from tests.golden.relocation import Json
from tests.golden.replaying import run
from tests.support.tree import build

FILES = sorted(HERE.glob("v*/live/control.json*"))


def asked(file: Path) -> list[Json]:
    told = load(file)["asked"]
    assert isinstance(told, list)
    assert told
    return told


EXCHANGES = [one for file in FILES for one in asked(file)]
ANSWERED = [one["answer"] for one in EXCHANGES if isinstance(one["answer"], dict)]


@pytest.mark.mount
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parts[-3])
def test_the_daemon_answers_an_old_client_as_it_did(tmp_path: Path, file: Path) -> None:
    expected = asked(file)
    root = tmp_path / "golden"
    build(root / "workspace", WORKSPACE)
    (root / "view").mkdir()
    done = run(MOUNT, root, os.environ)
    assert done.returncode == 0, done.stderr
    try:
        # What is settled is kept in the directory of a record.
        (root / "state/sandboxes/golden/commits/1/upper").mkdir(parents=True)
        told = ask(root, [str(one["request"]) for one in expected])
    finally:
        run(["unmount", "-s", "golden"], root, os.environ)
    for answer, one in zip(told, expected, strict=True):
        assert json.loads(json.dumps(answer)) == one


def test_every_verb_is_asked_for_and_every_form_of_a_mistake() -> None:
    assert [one["request"] for one in asked(FILES[0])] == list(REQUESTS)


@pytest.mark.parametrize("request_", REQUESTS[:21])
def test_a_request_of_an_old_client_is_understood(request_: str) -> None:
    sent = json.loads(request_)
    request = parse_request(request_.encode())
    assert (request.number, request.verb, request.args) == (
        sent.get("id"),
        sent["verb"],
        sent.get("args", {}),
    )
    assert json.loads(encode_request(request)) == {"id": None, "args": {}} | sent


@pytest.mark.parametrize("answer", ANSWERED, ids=lambda answer: str(answer["id"]))
def test_an_answer_of_an_old_daemon_is_understood(answer: Json) -> None:
    number, line = answer["id"], json.dumps(answer).encode()
    assert number is None or isinstance(number, int)
    if answer["ok"]:
        assert parse_answer(line, number) == answer["result"]
    else:
        error = answer["error"]
        assert isinstance(error, dict)
        with pytest.raises(SandboxError) as raised:
            parse_answer(line, number)
        assert (raised.value.code, raised.value.exit_code) == (error["code"], error["exit"])
        assert (raised.value.message, raised.value.hint) == (error["message"], error["hint"])


def test_operations_and_outcomes_are_read_as_they_were_meant() -> None:
    told = load(HERE / "v1/settlement.json")
    operations, outcomes = told["operations"], told["outcomes"]
    assert isinstance(operations, list)
    assert isinstance(outcomes, list)
    assert [operation_from_json(one) for one in operations] == OPERATIONS
    assert [outcome_from_json(one) for one in outcomes] == OUTCOMES
    # And an old daemon reads what this version writes.
    assert [operation_to_json(one) for one in OPERATIONS] == operations
    assert [outcome_to_json(one) for one in OUTCOMES] == outcomes


def test_fields_that_versions_before_them_did_not_write_may_be_missing() -> None:
    drop = {"op": "drop", "path": "a", "expect": "whiteout", "keep": "1", "number": None}
    rebase = {"op": "rebase", "path": "a", "lower": "b"}
    assert operation_from_json(drop) == operation_from_json(drop | {"whole": False})
    assert operation_from_json(rebase) == operation_from_json(rebase | {"own": False, "marked": False})
