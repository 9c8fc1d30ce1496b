"""The records of a benchmark, made before the clock starts: the same for every side."""

import json
from random import Random
from typing import Final, NamedTuple

CHUNK_RECORDS: Final = 1_000
CHUNKS: Final = 100
KEYS: Final = 10_000

WORDS: Final = (
    "GET",
    "PUT",
    "POST",
    "login",
    "logout",
    "search",
    "checkout",
    "image",
    "video",
    "cart",
    "profile",
    "feed",
)


class Chunk(NamedTuple):
    """A thousand records as columns."""

    values: list[bytes]
    keys: list[bytes] | None


def chunks(*, value_bytes: int, keyed: bool) -> list[Chunk]:
    """A hundred different chunks, used round and round: log lines in JSON, cut to length, and 16-byte keys."""
    random = Random(7)
    return [
        Chunk(
            [_line(random, value_bytes) for _ in range(CHUNK_RECORDS)],
            [b"key-%012d" % random.randrange(KEYS) for _ in range(CHUNK_RECORDS)] if keyed else None,
        )
        for _ in range(CHUNKS)
    ]


def _line(random: Random, value_bytes: int) -> bytes:
    parts = bytearray()
    while len(parts) < value_bytes:
        entry = {"at": random.randrange(10**12), "op": random.choice(WORDS), "user": random.randrange(10**6)}
        parts += json.dumps(entry).encode()
    return bytes(parts[:value_bytes])
