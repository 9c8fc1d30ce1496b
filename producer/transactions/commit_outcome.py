"""Determines how a transaction ended whose EndTxn(commit) was not answered, from its coordinator's state (TRX-8)."""

from enum import Enum

from .requests import DescribeTransactionResult, ProducerIdAndEpoch


class CommitOutcome(Enum):
    """Possible outcomes of the commit."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Not committed, and it never will be."""
    OPEN = "open"
    """Not ended yet: send EndTxn again."""
    UNKNOWN = "may be committed"
    """The transactional id has been used since, so its state does not show our outcome."""


_COMMITS = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTS = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


def commit_outcome_of(told: DescribeTransactionResult, identity: ProducerIdAndEpoch, version: int) -> CommitOutcome:
    """The outcome of the last transaction of `identity`, which had started (a partition was added or acknowledged).

    A commit keeps the epoch in version 1 and raises it by one in version 2. The coordinator's own abort (timeout,
    another producer) raises it by one in both. `Empty` at our epoch: no transaction was ever open under it. Any other
    identity means that the id was initialised again, which hides how ours ended.
    """
    if told.identity.producer_id != identity.producer_id:
        return CommitOutcome.UNKNOWN
    later = told.identity.epoch - identity.epoch
    if told.state in _COMMITS and 0 <= later <= version - 1:
        return CommitOutcome.COMMITTED
    if told.state in _ABORTS and 0 <= later <= 1:
        return CommitOutcome.ABORTED
    if later == 0 and told.state == "Empty":
        return CommitOutcome.ABORTED
    if later == 0 and told.state == "Ongoing":
        return CommitOutcome.OPEN
    return CommitOutcome.UNKNOWN
