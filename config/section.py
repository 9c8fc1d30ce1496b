"""Base classes of all settings sections."""

from pydantic import BaseModel, ConfigDict


def dotted(name: str) -> str:
    return name.replace("_", ".")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class KafkaSection(Section):
    """A section with Kafka's dotted names; the attributes have underscores."""

    model_config = ConfigDict(alias_generator=dotted, populate_by_name=True, use_attribute_docstrings=True)
