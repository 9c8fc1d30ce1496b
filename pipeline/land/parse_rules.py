"""What decides how a record is read: if any of it changes, the same record may be read otherwise."""

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Literal

READING: Final = 1
"""Rises when this program comes to read records otherwise under the same rules."""

NewerIds = Literal["stop", "quarantine"]


class ErrorClass(StrEnum):
    """Why a record is in `quarantine`."""

    DECODE = "decode"
    """The value is not of the topic's format."""
    SCHEMA = "schema"
    """It is, but does not fit the declared schema."""
    HEADER = "header"
    """The id header is malformed, or there are several."""
    TOO_LARGE = "too_large"
    """The value is longer than what is parsed."""


@dataclass(frozen=True, slots=True)
class ParseRules:
    """How the records of one topic are read. `schema` is in the one spelling that all ways of writing it have in common."""

    topic: str
    format: str
    schema: str
    schema_version: str
    record_bytes_max: int
    newer_ids: NewerIds
    dedupe: str

    def digest(self) -> str:
        """64 hexadecimal digits that differ when the rules do."""
        text = json.dumps({"reading": READING, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
