"""Whatever is wrong with a slice's header, it is noticed by itself."""

import pytest
from penstock.wire.errors import FrameError
from penstock.wire.slices import HEADER, VERSION, SliceHeader, read_header

HEADER_OF_TWO = SliceHeader(0, VERSION, 0, 0, 5, 2, 8, 0, 0, 0)


def test_a_header_comes_back_as_it_was_written() -> None:
    assert read_header(HEADER.pack(*HEADER_OF_TWO) + bytes(8)) == HEADER_OF_TWO


@pytest.mark.parametrize(
    "header",
    [
        HEADER_OF_TWO._replace(version=VERSION + 1),
        HEADER_OF_TWO._replace(zero=1),
        HEADER_OF_TWO._replace(count=0),
        HEADER_OF_TWO._replace(rows_bytes=9),
    ],
)
def test_one_wrong_field_is_enough(header: SliceHeader) -> None:
    with pytest.raises(FrameError):
        read_header(HEADER.pack(*header) + bytes(8))


def test_a_slice_that_is_shorter_than_its_header_is_refused() -> None:
    with pytest.raises(FrameError, match="shorter"):
        read_header(bytes(HEADER.size - 1))
