"""Reading a segment file whole, whatever of it the file system holds."""

import os
from pathlib import Path

import pytest
from penstock.daemon.spool.segment_files import read_whole

BLOCK = 4096


def written(path: Path, size: int, *pieces: tuple[int, bytes]) -> bytes:
    """A file of `size` bytes, allocated in full, with pieces at places; and what it must be read as."""
    expected = bytearray(size)
    with path.open("wb") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
        for place, piece in pieces:
            _ = os.pwrite(file.fileno(), piece, place)
            expected[place : place + len(piece)] = piece
        os.fsync(file.fileno())
    return bytes(expected)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param((), id="nothing"),
        pytest.param(((0, b"begin"),), id="only its beginning"),
        pytest.param(((0, b"begin"), (64 * BLOCK + 7, b"x" * 3 * BLOCK)), id="a hole between"),
        pytest.param(((100 * BLOCK - 3, b"end"),), id="only its end"),
        pytest.param(((0, bytes(100 * BLOCK)), (5, b"zeros around")), id="zeros that were written"),
    ],
)
def test_what_was_written_is_read_between_zeros(tmp_path: Path, pieces: tuple[tuple[int, bytes], ...]) -> None:
    expected = written(tmp_path / "segment", 100 * BLOCK, *pieces)
    assert read_whole(tmp_path / "segment") == expected


def test_a_file_without_blocks_is_read_as_zeros(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    with path.open("wb") as file:
        _ = file.truncate(10 * BLOCK + 1)
    assert read_whole(path) == bytearray(10 * BLOCK + 1)


def test_an_empty_file_is_read_as_nothing(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    assert written(path, 0) == b""
    assert read_whole(path) == b""
