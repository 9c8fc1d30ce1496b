"""Faults on command: the next so many times something is asked, it goes wrong as told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ..log.error_codes import ErrorCode

RULES_MAX: Final = 1000
"""Rules that may wait at once; more are refused."""


class TooManyRulesError(ValueError):
    """More rules wait than are kept."""


@dataclass(slots=True)
class FailNext:
    """Answer `error` for a partition instead of the truth."""

    api: int
    error: ErrorCode
    times: int
    """How often; -1 for ever."""

    topic: str | None = None
    """None: any."""

    partition: int | None = None
    applied: bool = False
    """Do the work first and lie about it; else the request has no effect."""

    def fits(self, api: int, topic: str, partition: int) -> bool:
        """Whether the rule means this request's partition."""
        return api == self.api and self.topic in {None, topic} and self.partition in {None, partition}


@dataclass(slots=True)
class CutAnswer:
    """Do the work and send the first `keep` bytes of the answer."""

    api: int
    times: int
    """How often; -1 for ever."""

    keep: int = 0
    close: bool = True
    """Then close the connection; else go on with the next request, and the client waits for ever."""


@dataclass(slots=True)
class DelayAnswer:
    """Do the work and keep the answer back for a while; the next request of the connection waits behind it."""

    api: int
    times: int
    """How often; -1 for ever."""

    seconds: float


@dataclass(slots=True)
class RepeatAnswer:
    """Do the work and send the answer twice."""

    api: int
    times: int
    """How often; -1 for ever."""


@dataclass(slots=True)
class CloseAt:
    """Close the next new connection when this many bytes came; a request that is not whole by then has no effect."""

    size: int


class MarkerFault(Enum):
    """What becomes of the record that ends a transaction in a partition."""

    HOLD = "hold"
    """It is not written until the rule is taken away."""

    LOSE = "lose"
    """It is never written, and the coordinator thinks that it was (KAFKA-20734)."""


@dataclass(slots=True)
class MarkerRule:
    """Which ends of transactions something happens to."""

    what: MarkerFault
    times: int = 1
    """How often, for those to be lost; -1 for ever."""

    transactional_id: str | None = None
    """None: any."""

    topic: str | None = None
    partition: int | None = None

    def fits(self, transactional_id: str, topic: str, partition: int) -> bool:
        """Whether the rule means this partition of this transaction."""
        named = self.transactional_id in {None, transactional_id}
        return named and self.topic in {None, topic} and self.partition in {None, partition}


class MarkerRules:
    """Rules for the ends of transactions, of all nodes of a cluster."""

    def __init__(self) -> None:
        self._rules: list[MarkerRule] = []

    def add(self, rule: MarkerRule) -> None:
        """Let a rule wait.

        Raises:
            TooManyRulesError: `RULES_MAX` wait already.
        """
        if len(self._rules) >= RULES_MAX:
            raise TooManyRulesError(f"{RULES_MAX} rules wait already")
        self._rules.append(rule)

    def clear(self) -> None:
        """Drop every rule: what was held is written."""
        self._rules.clear()

    def of(self, transactional_id: str, topic: str, partition: int) -> MarkerFault | None:
        """Return what is to become of the end of a transaction, and count what is lost."""
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
    """What a rule wants for one partition."""

    error: ErrorCode
    applied: bool


class Faults:
    """Rules that wait; the oldest that fits is used first."""

    def __init__(self) -> None:
        self._fail: list[FailNext] = []
        self._answers: list[AnswerRule] = []
        self._closes: list[CloseAt] = []

    def add(self, rule: FailNext | AnswerRule | CloseAt) -> None:
        """Let a rule wait for its requests.

        Raises:
            TooManyRulesError: `RULES_MAX` wait already.
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
        """Return what is to go wrong here, and count it as done."""
        for rule in self._fail:
            if rule.fits(api, topic, partition):
                rule.times -= 1
                if rule.times == 0:
                    self._fail.remove(rule)
                return PartitionFault(rule.error, rule.applied)
        return None

    def for_answer(self, api: int) -> AnswerRule | None:
        """Return what is to become of an answer, or None when it may be sent."""
        for rule in self._answers:
            if rule.api == api:
                rule.times -= 1
                if rule.times == 0:
                    self._answers.remove(rule)
                return rule
        return None

    def for_connection(self) -> int | None:
        """Return after how many bytes a new connection is to be closed, or None when it may stay."""
        return self._closes.pop(0).size if self._closes else None
