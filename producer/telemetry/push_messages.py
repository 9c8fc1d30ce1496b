"""GetTelemetrySubscriptions (71) and PushTelemetry (72), version 0, coded by hand because kafka-python has neither.

Both are flexible: header 2 with the client id as a plain string, compact lengths, tagged fields. Answers are the bytes
after the correlation id, so they begin with the tagged fields of header 1.
"""

import struct
from typing import Final

from ..protocol.framing import StreamError
from ..protocol.produce_request import uvarint
from .subscription import ZERO_ID, TelemetrySubscription

SUBSCRIPTIONS_KEY: Final = 71
PUSH_KEY: Final = 72
VERSION: Final = 0

_VARINT_BYTES_MAX: Final = 5
_HEADER: Final = struct.Struct(">ihhi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_PUSH_HEAD: Final = struct.Struct(">16si?b")
_ANSWER_HEAD: Final = struct.Struct(">ih")
_LIMITS: Final = struct.Struct(">ii?")


class _TelemetryResponseReader:
    """Reads the fields of an answer in order."""

    def __init__(self, data: bytes) -> None:
        self._data: Final = data
        self._at = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        found = layout.unpack_from(self._data, self._at)
        self._at += layout.size
        return found

    def uvarint(self) -> int:
        value = 0
        # Longer encodings exceed 32 bits, and decoding one takes longer with every byte.
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise IndexError

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise IndexError
        found, self._at = self._data[self._at : end], end
        return found

    def count(self) -> int:
        """Number of items in an array; null counts as none."""
        return max(0, self.uvarint() - 1)

    def skip_tags(self) -> None:
        for _ in range(self.uvarint()):
            _ = self.uvarint()
            _ = self.take(self.uvarint())


def frame_subscriptions(correlation_id: int, client_id: str, instance_id: bytes) -> bytes:
    """A GetTelemetrySubscriptions request, with its length prefix."""
    return _framed(SUBSCRIPTIONS_KEY, correlation_id, client_id, instance_id + b"\x00")


def frame_push(
    correlation_id: int,
    client_id: str,
    subscription: TelemetrySubscription,
    *,
    terminating: bool,
    codec: int,
    metrics: bytes,
) -> bytes:
    """A PushTelemetry request, with its length prefix. `metrics` is OTLP, compressed with codec number `codec`."""
    head = _PUSH_HEAD.pack(subscription.client_instance_id, subscription.subscription_id, terminating, codec)
    return _framed(PUSH_KEY, correlation_id, client_id, head + uvarint(len(metrics) + 1) + metrics + b"\x00")


def _framed(key: int, correlation_id: int, client_id: str, body: bytes) -> bytes:
    name = client_id.encode()
    head = _HEADER.pack(0, key, VERSION, correlation_id)[_INT32.size :] + _INT16.pack(len(name)) + name + b"\x00"
    return _INT32.pack(len(head) + len(body)) + head + body


def read_subscriptions(answer: bytes) -> tuple[int, int, TelemetrySubscription]:
    """Throttle in ms, error code, and subscription.

    Raises:
        StreamError: the bytes are not such an answer.
    """
    try:
        reader = _TelemetryResponseReader(answer)
        reader.skip_tags()
        throttle_ms, code = reader.unpack(_ANSWER_HEAD)
        instance_id = reader.take(len(ZERO_ID))
        (subscription_id,) = reader.unpack(_INT32)
        codecs = tuple(reader.take(reader.count()))
        interval_ms, bytes_max, delta = reader.unpack(_LIMITS)
        requested = tuple(reader.take(reader.uvarint() - 1).decode() for _ in range(reader.count()))
        reader.skip_tags()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise StreamError(f"{len(answer)} bytes are no answer to GetTelemetrySubscriptions: {error}") from error
    told = TelemetrySubscription(instance_id, subscription_id, codecs, interval_ms, bytes_max, bool(delta), requested)
    return throttle_ms, code, told


def read_push(answer: bytes) -> tuple[int, int]:
    """Throttle in ms, and error code.

    Raises:
        StreamError: the bytes are not such an answer.
    """
    try:
        reader = _TelemetryResponseReader(answer)
        reader.skip_tags()
        throttle_ms, code = reader.unpack(_ANSWER_HEAD)
        reader.skip_tags()
    except (struct.error, IndexError) as error:
        raise StreamError(f"{len(answer)} bytes are no answer to PushTelemetry: {error}") from error
    return throttle_ms, code
