"""Decompression as in Kafka's Java consumers: the broker rejects data that they could not read.

Every codec stops at a limit, so that a few bytes cannot expand into all memory.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final

import cramjam
import lz4.frame
import zstandard

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES: Final = 16
LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
GZIP_WINDOW: Final = 31
"""zlib's number for a gzip wrapper with the largest window."""

ZSTD_WINDOW_BYTES: Final = 1 << 27
"""The largest window that zstd's decoder accepts by default."""

ZSTD_STEP_BYTES: Final = 4096
"""Input per step: a few bytes can expand to a block of 128 KiB, and the limit is checked only between steps."""


class Codec(IntEnum):
    """Bits 0 to 2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CodecError(ValueError):
    """The data is invalid for its codec, or decompresses beyond the limit."""


def decompress(codec: Codec, data: bytes, limit: int) -> bytes:
    """Return the uncompressed records of a batch, at most `limit` bytes.

    Raises:
        CodecError: the data is corrupt, incomplete, followed by other data, or larger than the limit.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gzip(data, limit)
        case Codec.SNAPPY:
            return _snappy(data, limit)
        case Codec.LZ4:
            return _lz4(data, limit)
        case Codec.ZSTD:
            return _zstd(data, limit)


def _within(size: int, limit: int) -> None:
    if size > limit:
        raise CodecError(f"records unfold to more than {limit} bytes")


def _gzip(data: bytes, limit: int) -> bytes:
    plain = b""
    while data:
        member = zlib.decompressobj(GZIP_WINDOW)
        try:
            plain += member.decompress(data, limit + 1 - len(plain))
        except zlib.error as error:
            raise CodecError(f"gzip: {error}") from error
        _within(len(plain), limit)
        if not member.eof:
            raise CodecError("gzip: the stream ends early")
        data = member.unused_data
    return plain


def _snappy(data: bytes, limit: int) -> bytes:
    if not data.startswith(XERIAL_MAGIC):
        return _snappy_block(data, limit)
    if len(data) < XERIAL_HEADER_BYTES:
        raise CodecError("snappy: the stream header is cut")
    blocks: list[bytes] = []
    room = limit
    at = XERIAL_HEADER_BYTES
    while at < len(data):
        if at + 4 > len(data):
            raise CodecError("snappy: a block length is cut")
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0 or at + size > len(data):
            raise CodecError("snappy: a block is cut")
        block = _snappy_block(data[at : at + size], room)
        blocks.append(block)
        room -= len(block)
        at += size
    return b"".join(blocks)


def _snappy_block(data: bytes, limit: int) -> bytes:
    try:
        _within(cramjam.snappy.decompress_raw_len(data), limit)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise CodecError(f"snappy: {error}") from error


def _lz4(data: bytes, limit: int) -> bytes:
    if len(data) < 7 or not data.startswith(LZ4_MAGIC):
        raise CodecError("lz4: no frame header")
    flags = data[4]
    if flags >> 6 != 1:
        raise CodecError("lz4: unknown frame version")
    if not flags & 0x20:
        raise CodecError("lz4: dependent blocks, which Kafka's Java code cannot read")
    if flags & 0x03:
        raise CodecError("lz4: reserved flags or a dictionary")
    frame = lz4.frame.LZ4FrameDecompressor()
    try:
        plain = bytes(frame.decompress(data, limit + 1))
    except RuntimeError as error:
        raise CodecError(f"lz4: {error}") from error
    _within(len(plain), limit)
    if not frame.eof:
        raise CodecError("lz4: the frame ends early")
    if frame.unused_data:
        raise CodecError("lz4: bytes after the frame")
    return plain


def _zstd(data: bytes, limit: int) -> bytes:
    blocks: list[bytes] = []
    size = 0
    while data:
        frame = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()
        at = 0
        while not frame.eof and at < len(data):
            try:
                blocks.append(frame.decompress(data[at : at + ZSTD_STEP_BYTES]))
            except zstandard.ZstdError as error:
                raise CodecError(f"zstd: {error}") from error
            size += len(blocks[-1])
            _within(size, limit)
            at += ZSTD_STEP_BYTES
        if not frame.eof:
            raise CodecError("zstd: the frame ends early")
        data = frame.unused_data + data[at:]
    return b"".join(blocks)
