"""Decides which records of a refused batch fail, and their messages (ERR-3, KIP-467)."""

from typing import Final, NamedTuple

from ...wire.messages import BatchRefused
from ..protocol.error_codes import classify_produce_error, error_name
from ..records.sequence_ranges import OrdinalRange
from .outcomes import DeliveryFailure, DeliveryFailureKind

_NEIGHBOURS: Final = "not written, because other records of its batch were refused"


class RecordRefusal(NamedTuple):
    """Records [first, end) that fail with the same failure."""

    span: OrdinalRange
    failure: DeliveryFailure


def record_refusals(refused: BatchRefused, *, topic: str, index: int, whole: bool) -> list[RecordRefusal]:
    """The failures of the records that the broker named, each with its own message, or of the whole batch if it named
    none. A batch that may be in the log fails completely: its other records must not be written again either. `whole`:
    the other records fail too, with a message that gives the reason."""
    name = error_name(refused.code)
    where = f"{topic}-{index}"
    message = refused.message or f"{name}: {classify_produce_error(refused.code, record_count=1, log_start=-1).reason}"
    if refused.ambiguous:
        text = f"{where}: {message}; an earlier attempt may have written it"
        failure = DeliveryFailure(DeliveryFailureKind.MAY_BE_WRITTEN, refused.code, name, text)
        return [RecordRefusal((refused.first, refused.first + refused.count), failure)]
    listed = sorted({place: text for place, text in refused.record_errors if 0 <= place < refused.count}.items())
    if not listed:
        failure = DeliveryFailure(DeliveryFailureKind.REFUSED, refused.code, name, f"{where}: {message}")
        return [RecordRefusal((refused.first, refused.first + refused.count), failure)]
    own = dict(listed)
    others = DeliveryFailure(DeliveryFailureKind.REFUSED, refused.code, name, f"{where}: {_NEIGHBOURS}")
    return [
        RecordRefusal(
            (refused.first + place, refused.first + place + 1),
            DeliveryFailure(DeliveryFailureKind.REFUSED, refused.code, name, f"{where}: {own[place] or message}")
            if place in own
            else others,
        )
        for place in range(refused.count)
        if whole or place in own
    ]
