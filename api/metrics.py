"""Names of the direct producer's metrics."""

from typing import NamedTuple


class MetricName(NamedTuple):
    """Group, name and tags, as in Kafka's producer. `tags` are (tag, value) pairs, ordered as on the reference page."""

    group: str
    name: str
    tags: tuple[tuple[str, str], ...]
