"""Generates the reference page of the pipeline's settings from their declarations."""

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from .pipeline import (
    LandSettings,
    ListenerSettings,
    PipelineAuditSettings,
    PipelineSettings,
    PipelineTopicSettings,
    SealSettings,
)
from .pipeline_kafka import JAVA_ONLY, REFUSED, PipelineKafka
from .reference import section_rows
from .security import SecuritySettings

_HEAD: Final = """# Settings of the pipeline

Made from the declarations in `config/pipeline.py` by `make docs`; do not edit.

One TOML file (`--config`, by default `/etc/penstock/pipeline.toml`) and drop-ins beside it in `pipeline.conf.d/*.toml` (named after the
file). A setting given twice, an unknown one and a wrong value are errors, reported all at once. `${NAME}` in a text takes the value from
the environment. Kafka's and Spark's settings keep their names. Times are numbers of seconds or texts such as `"500ms"`, `"30s"`,
`"5m"`, `"24h"`, `"7d"`; sizes are numbers of bytes or texts such as `"64MiB"`.
"""

_SECURITY: Final = frozenset(SecuritySettings.model_fields)


def page() -> str:
    """Render the page in Markdown."""
    lines = [_HEAD, *section_rows("Top level", PipelineSettings, skip=(BaseModel,), unset="none")]
    lines += section_rows("[kafka]", PipelineKafka, without=_SECURITY | {"java"}, unset="none")
    lines += _java()
    lines += section_rows("[kafka]: security", SecuritySettings, kafka=True)
    lines += section_rows("[land]", LandSettings)
    lines += section_rows('[topics."name"]', PipelineTopicSettings, unset="none")
    lines += section_rows("[audit]", PipelineAuditSettings, unset="none")
    lines += section_rows("[seal]", SealSettings)
    lines += section_rows("[listener]", ListenerSettings)
    lines += ["## [spark]\n", "Any setting of Spark. `spark.` may be left out of its name.\n"]
    return "\n".join(lines)


def _java() -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in sorted(JAVA_ONLY))
    yield f"Taken besides, and given to Spark's connector as they stand: {names}.\n"
    yield "| not taken | why |"
    yield "|---|---|"
    yield from (f"| `{name}` | {reason} |" for name, reason in sorted(REFUSED.items()))
    yield ""
