"""Pages made from declarations are up to date."""

from pathlib import Path

from penstock.config import reference
from penstock.config.load import load
from penstock.config.model import Kafka

ROOT = Path(__file__).resolve().parents[2]


def test_the_settings_page_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    assert page == reference.page(), "run `make docs`"


def test_every_kafka_setting_states_kafkas_own_default() -> None:
    page = reference.page()
    for name, field in Kafka.model_fields.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{field.alias}` |"))
        kafka_default = row.split("|")[3].strip()
        assert kafka_default != "required" or name == "bootstrap_servers", f"{field.alias} lacks Kafka's default"


def test_the_shipped_settings_file_is_accepted() -> None:
    settings = load(ROOT / "config/penstock.toml")
    assert settings.kafka.bootstrap_servers == "localhost:9092"
    assert settings.topics["clicks.*"].on_refusal == "park"
