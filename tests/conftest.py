"""What all tests share: markers, options and the first seed."""

import pytest

from tests.harness.seeds import SEED, first_seed


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options. Here, because conftest files of deeper folders may be read too late for options."""
    parser.addoption(
        "--kafka-version",
        metavar="VERSION",
        help="run the tests with real Kafka on this version only; those that need no broker run with the newest",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and give Hypothesis the seed of this commit: a run that failed fails again."""
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(first_seed())
    config.addinivalue_line("markers", "kafka: needs a real Kafka cluster (a JDK and Maven, or KAFKA_BOOTSTRAP)")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which seed the simulations and models began with."""
    terminalreporter.write_line(
        f"First seed: {first_seed()} ({SEED}={first_seed()} repeats this run on another commit)"
    )
