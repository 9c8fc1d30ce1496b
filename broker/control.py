"""Commands of a test, one JSON object a line; each is answered with one JSON object on a line.

    {"op": "fail_next", "api": 0, "error": "NOT_LEADER_OR_FOLLOWER", "times": 1, "topic": "t", "partition": 3, "applied": false}
    {"op": "cut_answer", "api": 0, "keep": 0, "times": 1}     do the work, send `keep` bytes of the answer, close
    {"op": "drop_answer", "api": 0, "times": 1}                do the work, send nothing, go on with the connection
    {"op": "clear"}                                            forget the rules that wait
    {"op": "expire_producers", "after_ms": 0}                  forget producers whose last batch is older than this

`topic` and `partition` may be left out (any); `applied` true does the work and answers the error all the same.
"""

from __future__ import annotations

import json
from typing import Final, cast

from .core.errors import ErrorCode
from .core.faults import CutAnswer, FailNext, TooManyRulesError
from .core.node import Node
from .core.ports import Moment

LINE_BYTES_MAX: Final = 65_536


class CommandError(ValueError):
    """A line is not a command."""


def obey(node: Node, line: bytes, moment: Moment) -> bytes:
    """Carry out one line and return the line that answers it."""
    try:
        _obey(node, line, moment)
    except (CommandError, TooManyRulesError) as error:
        return json.dumps({"ok": False, "error": str(error)}).encode() + b"\n"
    return b'{"ok": true}\n'


def _obey(node: Node, line: bytes, moment: Moment) -> None:
    try:
        command = cast("dict[str, object]", json.loads(line))
    except ValueError as error:
        raise CommandError(f"not JSON: {error}") from error
    match command:
        case {"op": "fail_next", "api": int(api), "error": str(name)}:
            node.faults.add(_fail_next(api, name, command))
        case {"op": "cut_answer", "api": int(api)}:
            node.faults.add(CutAnswer(api, _number(command, "times", 1), _number(command, "keep", 0)))
        case {"op": "drop_answer", "api": int(api)}:
            node.faults.add(CutAnswer(api, _number(command, "times", 1), close=False))
        case {"op": "clear"}:
            node.faults.clear()
        case {"op": "expire_producers", "after_ms": int(after)}:
            node.expire_producers(moment, after)
        case _:
            raise CommandError("not a command that is known")


def _fail_next(api: int, name: str, rest: dict[str, object]) -> FailNext:
    if name not in ErrorCode.__members__:
        raise CommandError(f"unknown error {name}")
    topic = rest.get("topic")
    partition = rest.get("partition")
    applied = rest.get("applied", False)
    if not (topic is None or isinstance(topic, str)) or not isinstance(applied, bool):
        raise CommandError("topic is a string, applied a boolean")
    if not (partition is None or isinstance(partition, int)):
        raise CommandError("partition is a number")
    return FailNext(api, ErrorCode[name], _number(rest, "times", 1), topic, partition, applied)


def _number(rest: dict[str, object], name: str, default: int) -> int:
    value = rest.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CommandError(f"{name} is a number")
    return value
