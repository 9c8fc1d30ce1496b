"""What a figure of the direct producer is called."""

from typing import NamedTuple


class MetricName(NamedTuple):
    """Group, name and tags as Kafka's producer has them; `tags` are pairs of a tag and its value, in the order of the reference page."""

    group: str
    name: str
    tags: tuple[tuple[str, str], ...]
