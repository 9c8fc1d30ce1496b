"""`land`: topics into tables, each record in exactly one row of `bronze_<topic>` or `quarantine`.

One query a topic, each with a checkpoint of its own, all of them in one driver.
"""

from collections.abc import Callable
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ..config.pipeline import PipelineSettings
from .tables import Tables

Source = Callable[[SparkSession, str], DataFrame]
"""Makes the stream of a topic, with the columns of Spark's Kafka connector, `headers` among them."""


class Steps(Protocol):
    """Told where a batch is; what it raises stops the query there. Tests end the driver in it."""

    def reached(self, step: str, topic: str, batch: int) -> None: ...


class Land:
    """The queries of all topics of the settings."""

    def __init__(
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        tables: Tables,
        *,
        source: Source | None = None,
        steps: Steps | None = None,
        new_query: bool = False,
    ) -> None:
        """`new_query`: take it that a table's rows of another query (a checkpoint that is gone) are no reason not to start."""

    def start(self) -> tuple[StreamingQuery, ...]:
        """Start the queries, one a topic, in the order of the settings. Raise ConfigError."""
        raise NotImplementedError

    def wait(self, *, seconds: float | None = None) -> bool:
        """Until all queries have ended (True) or time is over (False). Raise LandError when one has failed."""
        raise NotImplementedError

    def run_once(self) -> None:
        """Land what is in the topics now, and end. Raise LandError."""
        raise NotImplementedError

    def stop(self, *, seconds: float = 60.0) -> None:
        """Let every query finish the batch it is at, then stop it."""
        raise NotImplementedError
