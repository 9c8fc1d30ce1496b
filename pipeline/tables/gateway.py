"""Access to the JVM behind a session, for which pyspark has no public interface."""

from typing import Any

from pyspark.sql import SparkSession

Java = Any
"""An object of the JVM or of Scala's library. py4j resolves its methods when they are called."""


def gateway(spark: SparkSession) -> tuple[Java, Java]:
    """Return the JVM's packages, and its session."""
    inside: Java = spark
    return inside._jvm, inside._jsparkSession  # noqa: SLF001


def make_active(spark: SparkSession) -> None:
    """Make it the session of this thread. Spark looks up Python data sources only in the thread's session, and a new
    thread has none."""
    jvm, session = gateway(spark)
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session)
