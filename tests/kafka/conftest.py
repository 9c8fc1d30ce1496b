"""Real clusters, started once a session and version; topics of their own for every test."""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.daemon import LIVING
from tests.harness.kafka_cluster import Cluster, OwnCluster, existing_bootstrap, existing_cluster, unique_topic
from tests.harness.kafka_node import VERSIONS
from tests.harness.secure_kafka import SecureKafka

FOLDER = Path(__file__).parent
MakeTopic = Callable[..., str]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and keep those of the version that was asked for."""
    own_items = [item for item in items if FOLDER in item.path.parents]
    for item in own_items:
        item.add_marker(pytest.mark.kafka)
    wanted = config.getoption("--kafka-version")
    if wanted is not None and wanted not in VERSIONS:
        raise pytest.UsageError(f"--kafka-version {wanted}: the tests know {', '.join(VERSIONS)}")
    everything = os.environ.get("PENSTOCK_ALL_VERSIONS") == "1"
    left_out = {item for item in own_items if not is_wanted(item, wanted, everything=everything)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def is_wanted(item: pytest.Item, version: str | None, *, everything: bool) -> bool:
    """Whether a test runs: on this version, or on any; on older ones without those that say `newest_kafka`, unless everything is to run."""
    own_version = version_of(item)
    if version is not None and own_version != version:
        return False
    return everything or own_version == VERSIONS[0] or item.get_closest_marker("newest_kafka") is None


def version_of(item: pytest.Item) -> str:
    """The version of Kafka that a test runs on. Without any, the newest, so that each test belongs to exactly one version."""
    callspec = getattr(item, "callspec", None)
    values = [] if callspec is None else list(callspec.params.values())
    return next((value for value in values if value in VERSIONS), VERSIONS[0])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that asks for a cluster on both versions, or on the one cluster that KAFKA_BOOTSTRAP names."""
    versions = ["existing"] if existing_bootstrap() else list(VERSIONS)
    for name in ("kafka_one", "kafka_three", "secure_kafka"):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, versions, indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the logs of the daemons that run when a test fails."""
    report = yield
    if report.failed:
        report.sections += [(f"daemon {daemon.folder}", daemon.describe()) for daemon in LIVING]
    return report


def _clusters(version: str, *, nodes: int) -> Iterator[Cluster]:
    bootstrap = existing_bootstrap()
    if bootstrap is not None:
        try:
            existing = existing_cluster(bootstrap, brokers=nodes)
        except LookupError as error:
            pytest.skip(str(error))
        yield existing
        # Others may live there: leave nothing behind.
        for topic in list(existing.made):
            existing.delete_topic(topic)
        return
    cluster = OwnCluster(version, node_count=nodes)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def kafka_one(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of one node of the version asked for."""
    yield from _clusters(request.param, nodes=1)


@pytest.fixture(scope="session")
def kafka_three(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of three nodes; topics have three replicas and a minimum of two in sync."""
    yield from _clusters(request.param, nodes=3)


@pytest.fixture(scope="session")
def secure_kafka(request: pytest.FixtureRequest) -> Iterator[SecureKafka]:
    """A node with a listener for every way to say who one is. Tests want `secure`."""
    if existing_bootstrap() is not None:
        pytest.skip("KAFKA_BOOTSTRAP names the cluster, and this test wants users and listeners of its own")
    with SecureKafka(request.param) as started:
        yield started


@pytest.fixture
def secure(secure_kafka: SecureKafka) -> Iterator[SecureKafka]:
    """The node with all listeners; this process and those it starts find its realm."""
    with secure_kafka.realm():
        yield secure_kafka


def own(cluster: Cluster) -> OwnCluster:
    """The cluster as one whose nodes may be killed; skips the test when it is not ours."""
    if not isinstance(cluster, OwnCluster):
        pytest.skip("KAFKA_BOOTSTRAP names the cluster, and this test kills brokers")
    return cluster


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A topic name of this test alone."""
    return unique_topic([request.node.name])


@pytest.fixture
def cleanup() -> Iterator[ExitStack]:
    """Closed after the test."""
    with ExitStack() as stack:
        yield stack


def count_from(name: str, usual: int) -> int:
    """A count that the environment may raise, as `make soak` does: PENSTOCK_KILLS, PENSTOCK_RECORDS."""
    text = os.environ.get(name)
    return int(text) if text else usual
