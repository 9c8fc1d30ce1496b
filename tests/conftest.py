"""What all tests share: markers and options."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options. Here, because conftest files of deeper folders may be read too late for options."""
    parser.addoption(
        "--kafka-version",
        metavar="VERSION",
        help="run the tests with real Kafka on this version only; those that need no broker run with the newest",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "kafka: needs a real Kafka cluster (a JDK and Maven, or KAFKA_BOOTSTRAP)")
