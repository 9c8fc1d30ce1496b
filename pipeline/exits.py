"""Why `penstock-pipeline` ended, as its exit code. Schedulers and scripts go by these numbers."""

from enum import IntEnum
from typing import Final


class PipelineExit(IntEnum):
    """The codes. Those of the audit rise with how bad it is; the highest of all hours that were asked for wins."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LATE = 10
    UNKNOWN = 11
    DUPLICATED = 12
    LOST = 13


MEANINGS: Final = {
    PipelineExit.OK: "done; of `land`: an orderly end; of `audit`: everything that was asked for is complete",
    PipelineExit.FAILED: "it could not be done; standard error says why in one line (`--debug`: the whole trace)",
    PipelineExit.USAGE: "wrong options, or settings that are wrong; every problem is told, nothing was started",
    PipelineExit.LATE: "of `audit`: something is still in a spool, or in Kafka and not landed yet",
    PipelineExit.UNKNOWN: "of `audit`: the books have gaps or a daemon is silent, so that nothing can be said of some hour",
    PipelineExit.DUPLICATED: "of `audit`: record ids landed more than once; `seal` removes them",
    PipelineExit.LOST: "of `audit`: record ids are lost; the report names them",
}
"""What each code means."""
