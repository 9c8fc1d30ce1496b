"""The rules by which records are read. If any of them changes, the same record may be read differently."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Literal

READING: Final = 1
"""Increased when this program starts to read records differently under the same rules."""

NewerIds = Literal["stop", "quarantine"]


class ErrorClass(StrEnum):
    """Why a record is in `quarantine`."""

    DECODE = "decode"
    """The value is not in the topic's format."""
    SCHEMA = "schema"
    """The value is in the format, but does not fit the declared schema."""
    HEADER = "header"
    """The id header is malformed, or there are several."""
    TOO_LARGE = "too_large"
    """The value exceeds the size limit for parsing."""


@dataclass(frozen=True, slots=True)
class ParseRules:
    """How to read the records of one topic. `schema` is in canonical form."""

    topic: str
    format: str
    schema: str
    schema_version: str
    record_bytes_max: int
    newer_ids: NewerIds
    dedupe: str

    def digest(self) -> str:
        """Return 64 hexadecimal digits that differ when the rules do."""
        text = json.dumps({"reading": READING, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
