"""The JVM behind a session: pyspark has no public way to it."""

from typing import Any

from pyspark.sql import SparkSession

Java = Any
"""An object of the JVM, or of Scala's library; py4j finds its methods when they are called."""


def gateway(spark: SparkSession) -> tuple[Java, Java]:
    """The JVM's packages, and its session."""
    inside: Java = spark
    return inside._jvm, inside._jsparkSession  # noqa: SLF001


def make_active(spark: SparkSession) -> None:
    """Make it the session of this thread. Spark looks for Python data sources in that one only, and a new thread has none."""
    jvm, session = gateway(spark)
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session)
