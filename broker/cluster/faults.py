"""Injected faults: rules make the next matching requests fail a given number of times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ..log.error_codes import ErrorCode

RULES_MAX: Final = 1000
"""Most rules that may be pending at once; more are rejected."""


class TooManyRulesError(ValueError):
    """Too many rules are pending."""


@dataclass(slots=True)
class FailNext:
    """Respond with `error` for a partition instead of the real result."""

    api: int
    error: ErrorCode
    times: int
    """How often; -1 without limit."""

    topic: str | None = None
    """None: any."""

    partition: int | None = None
    applied: bool = False
    """Do the work and still respond with the error; else the request has no effect."""

    def fits(self, api: int, topic: str, partition: int) -> bool:
        """Return whether the rule matches this request's partition."""
        return api == self.api and self.topic in {None, topic} and self.partition in {None, partition}


@dataclass(slots=True)
class CutAnswer:
    """Do the work and send only the first `keep` bytes of the response."""

    api: int
    times: int
    """How often; -1 without limit."""

    keep: int = 0
    close: bool = True
    """Then close the connection; else serve the next request, and the client never gets the response."""


@dataclass(slots=True)
class DelayAnswer:
    """Do the work and delay the response; the next request of the connection waits for it."""

    api: int
    times: int
    """How often; -1 without limit."""

    seconds: float


@dataclass(slots=True)
class RepeatAnswer:
    """Do the work and send the response twice."""

    api: int
    times: int
    """How often; -1 without limit."""


@dataclass(slots=True)
class CloseAt:
    """Close the next new connection after receiving this many bytes; an incomplete request has no effect."""

    size: int


class MarkerFault(Enum):
    """Fault of a transaction marker in a partition."""

    HOLD = "hold"
    """It is not written until the rule is removed."""

    LOSE = "lose"
    """It is never written, but the coordinator counts it as written (KAFKA-20734)."""


@dataclass(slots=True)
class MarkerRule:
    """A fault, and the transaction markers that it affects."""

    what: MarkerFault
    times: int = 1
    """How often, for LOSE; -1 without limit."""

    transactional_id: str | None = None
    """None: any."""

    topic: str | None = None
    partition: int | None = None

    def fits(self, transactional_id: str, topic: str, partition: int) -> bool:
        """Return whether the rule matches this partition of this transaction."""
        named = self.transactional_id in {None, transactional_id}
        return named and self.topic in {None, topic} and self.partition in {None, partition}


class MarkerRules:
    """Rules for transaction markers, for all nodes of a cluster."""

    def __init__(self) -> None:
        self._rules: list[MarkerRule] = []

    def add(self, rule: MarkerRule) -> None:
        """Add a rule.

        Raises:
            TooManyRulesError: `RULES_MAX` rules are already pending.
        """
        if len(self._rules) >= RULES_MAX:
            raise TooManyRulesError(f"{RULES_MAX} rules wait already")
        self._rules.append(rule)

    def clear(self) -> None:
        """Drop every rule; held markers are then written."""
        self._rules.clear()

    def of(self, transactional_id: str, topic: str, partition: int) -> MarkerFault | None:
        """Return the fault for a transaction marker, or None; count a lost marker against its rule."""
        for rule in self._rules:
            if rule.fits(transactional_id, topic, partition):
                if rule.what is MarkerFault.LOSE:
                    rule.times -= 1
                    if rule.times == 0:
                        self._rules.remove(rule)
                return rule.what
        return None


AnswerRule = CutAnswer | DelayAnswer | RepeatAnswer


class PartitionFault(NamedTuple):
    """The fault of one partition."""

    error: ErrorCode
    applied: bool


class Faults:
    """The pending rules of one node; the oldest match is used first."""

    def __init__(self) -> None:
        self._fail: list[FailNext] = []
        self._answers: list[AnswerRule] = []
        self._closes: list[CloseAt] = []

    def add(self, rule: FailNext | AnswerRule | CloseAt) -> None:
        """Add a rule for matching requests.

        Raises:
            TooManyRulesError: `RULES_MAX` rules are already pending.
        """
        if len(self._fail) + len(self._answers) + len(self._closes) >= RULES_MAX:
            raise TooManyRulesError(f"{RULES_MAX} rules wait already")
        if isinstance(rule, FailNext):
            self._fail.append(rule)
        elif isinstance(rule, CloseAt):
            self._closes.append(rule)
        else:
            self._answers.append(rule)

    def clear(self) -> None:
        """Drop every rule."""
        self._fail.clear()
        self._answers.clear()
        self._closes.clear()

    def for_partition(self, api: int, topic: str, partition: int) -> PartitionFault | None:
        """Return the fault for a partition, or None, and count it as used."""
        for rule in self._fail:
            if rule.fits(api, topic, partition):
                rule.times -= 1
                if rule.times == 0:
                    self._fail.remove(rule)
                return PartitionFault(rule.error, rule.applied)
        return None

    def for_answer(self, api: int) -> AnswerRule | None:
        """Return the fault for a response, or None to send it normally; count it as used."""
        for rule in self._answers:
            if rule.api == api:
                rule.times -= 1
                if rule.times == 0:
                    self._answers.remove(rule)
                return rule
        return None

    def for_connection(self) -> int | None:
        """Return the number of bytes after which to close a new connection, or None to keep it open."""
        return self._closes.pop(0).size if self._closes else None
