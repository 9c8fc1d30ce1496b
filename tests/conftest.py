"""What all tests share: the markers."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "kafka: needs a real Kafka cluster (a JDK and Maven, or KAFKA_BOOTSTRAP)")
