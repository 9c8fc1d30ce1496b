"""Compression of record batches: one function per codec, with a reused context.

The C libraries are pure functions of their input, so this package may use them. A compressor belongs to one thread.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, cast

import cramjam
import lz4.frame
import zstandard

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
ATTRIBUTES: Final[dict[Codec, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Values of bits 0 to 2 of a batch's attributes."""

LZ4_FAST: Final = 9
"""Kafka's level 9, the default, is its fast compressor; the library calls that 0."""
_LZ4_LEVEL_MIN: Final = 3
_LZ4_LEVEL_MAX: Final = 12
_GZIP_WBITS: Final = 31
_WORSE_STEP: Final = 0.05
_BETTER_STEP: Final = 0.005
_XERIAL_HEADER: Final = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES: Final = 32 << 10
_XERIAL_LENGTH: Final = struct.Struct(">i")


class Levels(NamedTuple):
    """Compression levels, numbered as in Kafka; gzip -1 is zlib's default."""

    gzip: int = -1
    lz4: int = LZ4_FAST
    zstd: int = 3


class Compressor(NamedTuple):
    """A codec at a level, with its value in the batch attributes. `compress` None: no compression."""

    codec: Codec
    attributes: int
    compress: Callable[[memoryview], bytes] | None


def make_compressor(codec: Codec, levels: Levels) -> Compressor:
    """The compressor for a codec. Keep it: its context is reused for every batch."""
    return Compressor(codec, ATTRIBUTES[codec], _function(codec, levels))


def _function(codec: Codec, levels: Levels) -> Callable[[memoryview], bytes] | None:
    match codec:
        case "none":
            return None
        case "gzip":
            return _gzip(levels.gzip)
        case "snappy":
            return _xerial
        case "lz4":
            return _lz4(levels.lz4)
        case "zstd":
            return cast("Callable[[memoryview], bytes]", zstandard.ZstdCompressor(level=levels.zstd).compress)


def _gzip(level: int) -> Callable[[memoryview], bytes]:
    def compress(data: memoryview) -> bytes:
        stream = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WBITS)
        return stream.compress(data) + stream.flush()

    return compress


def _lz4(level: int) -> Callable[[memoryview], bytes]:
    ours = 0 if level == LZ4_FAST else max(_LZ4_LEVEL_MIN, min(level, _LZ4_LEVEL_MAX))

    def compress(data: memoryview) -> bytes:
        # Kafka's Java code rejects linked blocks.
        packed = lz4.frame.compress(
            data,
            compression_level=ours,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            store_size=False,
        )
        return cast("bytes", packed)

    return compress


def _xerial(data: memoryview) -> bytes:
    """Snappy in the framing of the Java client: a header, then blocks of 32 KB, each preceded by its compressed
    size."""
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(parts)


class CompressionRatio:
    """Estimated compression ratio of a topic's batches (compressed size / original size). Worse ratios are adopted
    fast, better ones slowly. Never below the last observed ratio."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0

    def observe(self, observed: float) -> None:
        """Update the estimate with the ratio of a compressed batch."""
        if observed > self.value:
            self.value = max(self.value + _WORSE_STEP, observed)
        else:
            self.value = max(self.value - _BETTER_STEP, observed)

    def reset(self, observed: float) -> None:
        """A batch was refused for its size: reset the estimate to at least 1.0, which expects no compression."""
        self.value = max(1.0, observed)


class CompressionRatios:
    """A process's estimates: one for each topic and codec, shared by the topic's partitions."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, Codec], CompressionRatio] = {}

    def of(self, topic: str, codec: Codec) -> CompressionRatio:
        """The estimate for a topic and codec; always the same object."""
        return self._ratios.setdefault((topic, codec), CompressionRatio())
