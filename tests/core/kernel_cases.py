"""Frames to feed the kernel with, the kernel without a compiler, and a reader of rows that shares no code with it."""

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgpack
from hypothesis import strategies as st
from penstock.producer.kernel import frames as compiled
from penstock.producer.kernel import records as compiled_records
from penstock.wire.errors import FrameError

FOLDER = Path(compiled_records.__file__).parent
OPTIONS: dict[str, Any] = {
    "partition_count": 12,
    "sticky": 3,
    "ignore_keys": False,
    "now_ms": 1_700_000_000_000,
    "header_count_max": 8,
    "record_bytes_max": 1 << 20,
    "reserved_headers": (),
    "want_partitions": True,
}


def _uncompiled() -> dict[str, ModuleType]:
    """The kernel's files as they stand, as modules of a package of their own beside the compiled ones."""
    package = ModuleType("penstock.producer.kernel_uncompiled")
    package.__path__ = []
    sys.modules[package.__name__] = package
    loaded: dict[str, ModuleType] = {}
    for name in ("msgpack", "columns", "slices", "records", "frames"):
        spec = importlib.util.spec_from_file_location(f"{package.__name__}.{name}", FOLDER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    return loaded


_modules = _uncompiled()
plain = _modules["frames"]
plain_records = _modules["records"]
FRAME_KERNELS = [compiled, plain]
RECORD_KERNELS = [compiled_records, plain_records]
NAMES = ["compiled", "uncompiled"]


class Columns(NamedTuple):
    """A SEND before packing."""

    partitions: object
    keys: object
    values: object
    headers: object
    timestamps: object

    def packed(self, *, seq: int = 7, level: int = 2, topic: str = "orders") -> bytes:
        packed = msgpack.packb([2, seq, level, topic, *self], use_bin_type=True)
        assert isinstance(packed, bytes)
        return packed


class Row(NamedTuple):
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def read_body(data: bytes) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers; the body must end where they end."""
    key, at = _field(data, 0)
    value, at = _field(data, at)
    count, at = _varint(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _field(data, at)
        content, at = _field(data, at)
        assert name is not None
        headers.append((name.decode(), content))
    assert at == len(data)
    return key, value, headers


def read_rows(data: bytes, *, own: bool) -> list[Row]:
    rows: list[Row] = []
    at = 48
    while at < len(data):
        stamp = None
        if own:
            (stamp,) = struct.unpack_from("<q", data, at)
            at += 8
        (size,) = struct.unpack_from("<I", data, at)
        rows.append(Row(stamp, *read_body(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return rows


def outcome(kernel: Any, function: str, *args: object, **options: object) -> object:
    """The result as plain tuples, or what the FrameError said: equal for both kernels, or one of them is wrong."""
    try:
        result = getattr(kernel, function)(*args, **options)
    except FrameError as error:
        return ("refused", str(error), error.code, error.fatal, error.seq)
    return result


def scatter_frame(kernel: Any, body: bytes, **changes: object) -> Any:
    head = kernel.read_head(body, 0, len(body))
    return kernel.scatter(body, 0, len(body), head.position, **{**OPTIONS, **changes})


def try_frame(kernel: Any, body: bytes, **changes: object) -> object:
    head = outcome(kernel, "read_head", body, 0, len(body))
    if head[0] == "refused":  # type: ignore[index]
        return head
    return outcome(kernel, "scatter", body, 0, len(body), head.position, **{**OPTIONS, **changes})  # type: ignore[attr-defined]


_blob = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"", b"x" * 300, b"y" * 70_000]))
_header = st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=10)))
_headers = st.one_of(st.none(), st.lists(_header, max_size=4))
_stamp = st.one_of(st.integers(0, (1 << 63) - 1), st.integers(0, 300))
_partition = st.one_of(st.none(), st.integers(0, 11))


@st.composite
def columns(draw: st.DrawFn, *, records_max: int = 20) -> Columns:
    """A valid frame."""
    n = draw(st.integers(1, records_max))

    def column(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(items, min_size=n, max_size=n)

    headers = draw(st.one_of(st.none(), column(_headers)))
    if headers is not None:
        headers = [None if pairs is None else [part for pair in pairs for part in pair] for pairs in headers]
    return Columns(
        draw(st.one_of(st.none(), st.integers(0, 11), column(_partition))),
        draw(st.one_of(st.none(), column(_blob))),
        draw(column(_blob)),
        headers,
        draw(st.one_of(st.none(), _stamp, column(_stamp))),
    )
