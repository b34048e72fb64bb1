"""Golden files, read, and what the program does today beside what it did when they were made."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

from tests.golden.relocation import Json
from tests.golden.replaying import remembered

HERE = Path(__file__).parent


def load(file: Path) -> Json:
    """Read an object, compressed or not."""
    content = file.read_bytes()
    found: object = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    assert isinstance(found, dict)
    return found


def entries_of(state: Json) -> list[Json]:
    """The objects of a state, as `put` makes them."""
    entries = state["entries"]
    assert isinstance(entries, list)
    return entries


def agree(steps: object, root: Path, environment: Mapping[str, str]) -> None:
    """Give the commands of *steps* to what is at *root*; every answer must be the one that is remembered."""
    assert isinstance(steps, list)
    assert steps
    answers = remembered([step["words"] for step in steps], root, environment)
    for number, (answer, step) in enumerate(zip(answers, steps, strict=True)):
        # As they are read from JSON: a pair has become a list.
        assert said_again(json.loads(json.dumps(answer)), step) == step, f"step {number}: {step['words']}"


def said_again(answer: object, before: object) -> object:
    """Return *answer* without the keys that were added to its objects since: programs may not mind those."""
    if isinstance(answer, dict) and isinstance(before, dict):
        return {key: said_again(value, before[key]) for key, value in answer.items() if key in before}
    if isinstance(answer, list) and isinstance(before, list) and len(answer) == len(before):
        return [said_again(one, other) for one, other in zip(answer, before, strict=True)]
    return answer
