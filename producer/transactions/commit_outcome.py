"""How did a transaction end whose EndTxn(commit) went out and was not answered? What its coordinator keeps, decides (TRX-8)."""

from enum import Enum

from .requests import DescribeTransactionResult, ProducerIdAndEpoch


class CommitOutcome(Enum):
    """What can be told of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    """Not committed, and it never will be."""
    OPEN = "open"
    """Still to be ended: EndTxn again."""
    UNKNOWN = "may be committed"
    """The transactional id has moved on; what is kept says nothing of ours."""


_COMMITS = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTS = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})


def commit_outcome_of(told: DescribeTransactionResult, identity: ProducerIdAndEpoch, version: int) -> CommitOutcome:
    """The outcome of the last transaction of `identity`, which is known to have begun (a partition was added or acknowledged).

    A commit keeps the epoch in version 1 and raises it by one in version 2; the coordinator's own abort (time-out, another producer)
    raises it by one in both. `Empty` at our epoch: nothing was ever open under it. With any other identity somebody
    initialised the id after us, and that hides how ours ended.
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
