"""Pages made from declarations are up to date."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from penstock.config import reference
from penstock.config.direct import DirectSettings
from penstock.config.kafka_names import DAEMON_REFUSED, DIRECT_REFUSED, EVERY_DEFAULT
from penstock.config.load import load
from penstock.config.model import KafkaSettings, Settings
from penstock.config.pipeline import load_pipeline
from penstock.pipeline import reference_pages as pipeline_pages
from penstock.producer.telemetry import reference_page
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]


def test_the_settings_page_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    assert page == reference.page(), "run `make docs`"


def test_the_settings_page_has_every_section() -> None:
    sections = [
        name
        for name, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    ]
    found = reference.page()
    assert [name for name in sections if f"## [{name}]" not in found] == []


def test_the_page_of_the_direct_producers_settings_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/reference/direct-settings.md").read_text()
    assert page == reference.direct_page(), "run `make docs`"


def test_the_page_of_the_direct_producers_metrics_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/reference/producer-metrics.md").read_text()
    assert page == reference_page.page(), "run `make docs`"


def test_the_page_of_the_pipelines_metrics_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/reference/pipeline-metrics.md").read_text()
    assert page == pipeline_pages.metric_page(), "run `make docs`"


def test_the_pages_of_the_pipelines_settings_and_command_are_what_the_declarations_say() -> None:
    settings = (ROOT / "docs/reference/pipeline-settings.md").read_text()
    assert settings == reference.pipeline_page(), "run `make docs`"
    command = (ROOT / "docs/reference/pipeline-command-line.md").read_text()
    assert command == pipeline_pages.command_page(), "run `make docs`"


@pytest.mark.parametrize(
    ("page", "model", "refused"),
    [
        pytest.param(reference.page(), KafkaSettings, DAEMON_REFUSED, id="daemon"),
        pytest.param(reference.direct_page(), DirectSettings, DIRECT_REFUSED, id="direct"),
    ],
)
def test_each_setting_of_kafkas_producer_is_kept_or_refused_and_said_so(
    page: str, model: type[BaseModel], refused: Mapping[str, str]
) -> None:
    kept = {field.alias for field in model.model_fields.values()}
    assert kept & set(refused) == set()
    assert set(EVERY_DEFAULT) - kept - set(refused) == set()
    assert set(refused) - set(EVERY_DEFAULT) == set()
    rows = page.splitlines()
    for name, default in EVERY_DEFAULT.items():
        family = f"`{name.split('.')[0]}.*`"
        if name in kept:
            row = next(row for row in rows if row.startswith(f"| `{name}` |"))
            assert default in ("", "null", "required") or f"`{default}`" in row.split("|")[3], row
        else:
            assert any(
                (f"`{name}`" in row or family in row) and row.endswith(f"| {refused[name]} |") for row in rows
            ), name


def test_a_setting_that_kafkas_producer_lacks_says_so() -> None:
    own = {field.alias for field in [*KafkaSettings.model_fields.values(), *DirectSettings.model_fields.values()]}
    credentials = {
        *("sasl.username", "sasl.password.file", "sasl.allow_plaintext", "ssl.key.location", "ssl.key.password.file"),
        *("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.secret.file", "sasl.oauthbearer.extensions"),
        *("sasl.oauthbearer.truststore.location", "sasl.kerberos.keytab", "sasl.kerberos.principal", "tls.insecure"),
    }
    assert own - set(EVERY_DEFAULT) == {"allow.auto.create.topics"} | credentials


def test_the_shipped_settings_file_is_accepted() -> None:
    settings = load(ROOT / "config/penstock.toml")
    assert settings.kafka.bootstrap_servers == "localhost:9092"
    assert settings.topics["clicks.*"].on_refusal == "park"


def test_the_shipped_settings_file_of_the_pipeline_is_accepted() -> None:
    settings = load_pipeline(ROOT / "config/pipeline.toml")
    assert settings.kafka.bootstrap_servers == "localhost:9092"
    assert settings.topics["clicks.web"].format == "json"
