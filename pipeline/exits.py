"""Exit codes of `penstock-pipeline`. Schedulers and scripts depend on these numbers."""

from enum import IntEnum
from typing import Final


class PipelineExit(IntEnum):
    """Exit codes. The audit's codes rise with severity; its exit code is the highest of all requested hours."""

    OK = 0
    FAILED = 1
    USAGE = 2
    LATE = 10
    UNKNOWN = 11
    DUPLICATED = 12
    LOST = 13


MEANINGS: Final = {
    PipelineExit.OK: "success; of `land`: an orderly shutdown; of `audit`: all requested hours are complete",
    PipelineExit.FAILED: "failure; standard error explains why in one line (`--debug`: the whole traceback)",
    PipelineExit.USAGE: "wrong options or settings; every problem is reported and nothing was started",
    PipelineExit.LATE: "of `audit`: records are still in a spool, or in Kafka and not landed yet",
    PipelineExit.UNKNOWN: "of `audit`: audit records have gaps or a daemon is silent, so some hour cannot be judged",
    PipelineExit.DUPLICATED: "of `audit`: record ids landed more than once; `seal` removes them",
    PipelineExit.LOST: "of `audit`: record ids are lost; the report lists them",
}
"""What each code means."""
