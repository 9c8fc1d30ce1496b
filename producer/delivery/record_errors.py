"""Which records of a refused batch fail, and with what text (ERR-3, KIP-467)."""

from typing import Final, NamedTuple

from ...wire.messages import Refused
from ..protocol.error_codes import error_name, judge_produce
from ..records.sequence_ranges import Span
from .outcomes import Failure, Kind

_NEIGHBOURS: Final = "not written, because other records of its batch were refused"


class Refusal(NamedTuple):
    """Records [first, end) that fail in one way."""

    span: Span
    failure: Failure


def refusals_of(refused: Refused, *, topic: str, index: int, whole: bool) -> list[Refusal]:
    """The records that the broker named, each with its own text, or all of the batch when it named none. A batch that may be in
    the log all the same fails whole: its other records must not be written again either. `whole`: the others fail too, with a
    text that says why."""
    name = error_name(refused.code)
    where = f"{topic}-{index}"
    message = refused.message or f"{name}: {judge_produce(refused.code, record_count=1, log_start=-1).reason}"
    if refused.ambiguous:
        text = f"{where}: {message}; an earlier attempt may have written it"
        failure = Failure(Kind.MAY_BE_WRITTEN, refused.code, name, text)
        return [Refusal((refused.first, refused.first + refused.count), failure)]
    listed = sorted({place: text for place, text in refused.record_errors if 0 <= place < refused.count}.items())
    if not listed:
        failure = Failure(Kind.REFUSED, refused.code, name, f"{where}: {message}")
        return [Refusal((refused.first, refused.first + refused.count), failure)]
    own = dict(listed)
    others = Failure(Kind.REFUSED, refused.code, name, f"{where}: {_NEIGHBOURS}")
    return [
        Refusal(
            (refused.first + place, refused.first + place + 1),
            Failure(Kind.REFUSED, refused.code, name, f"{where}: {own[place] or message}") if place in own else others,
        )
        for place in range(refused.count)
        if whole or place in own
    ]
