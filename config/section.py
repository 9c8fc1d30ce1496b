"""What every section of the settings is made from."""

from pydantic import BaseModel, ConfigDict


def dotted(name: str) -> str:
    """Kafka's name of an attribute."""
    return name.replace("_", ".")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)


class KafkaSection(Section):
    """Names with dots, as Kafka has them; the attribute has underscores."""

    model_config = ConfigDict(alias_generator=dotted, populate_by_name=True, use_attribute_docstrings=True)
