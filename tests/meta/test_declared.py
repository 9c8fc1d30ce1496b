"""What is declared is used: settings outside of `config/`, exit codes, and each has its word for people."""

import ast
from typing import Final

import pytest
from penstock.cli.reference import EXITS
from penstock.config.direct import DirectSettings
from penstock.config.model import (
    DaemonTopicSettings,
    Exporter,
    KafkaSettings,
    LimitSettings,
    Settings,
    SpoolSettings,
    Timeouts,
)
from penstock.config.pipeline import (
    LandSettings,
    ListenerSettings,
    PipelineAuditSettings,
    PipelineSettings,
    PipelineTopicSettings,
    SealSettings,
)
from penstock.runtime.process import ExitCode
from pydantic import BaseModel

from tests.meta.test_shape import ROOT, sources

# Each takes one value only, so there is nothing to obey: the model refuses every other.
SETTLED: Final = {"acks", "client_dns_lookup", "enable_idempotence", "enable_metrics_push"}
# Only rules between settings look at them, before anything is started.
RULED: Final = {"sasl_allow_plaintext"}
DECLARATIONS: Final = {"direct.py", "model.py", "producer.py", "security.py", "secret_files.py"}
SECTIONS: Final = {
    Settings: {"settings", "wanted", "given"},
    # `producer/metadata/client.py` is given this section as its settings.
    KafkaSettings: {"kafka", "settings"},
    SpoolSettings: {"spool"},
    Exporter: {"exporter"},
    LimitSettings: {"limits"},
    Timeouts: {"timeouts"},
    DaemonTopicSettings: {"topic_settings", "found", "topic", "settings", "codec", "kafka", "rules"},
}


def read_attributes(folder: str = "") -> set[tuple[str, str]]:
    """`a.b` wherever it is read in the package or a folder of it, but for the declarations: the last name before the point, and
    the attribute.

    A call counts by its function's name: `topic_settings(…).linger_ms`.
    """
    found: set[tuple[str, str]] = set()
    for path in sources():
        place = path.relative_to(ROOT)
        if not str(place).startswith(folder) or (place.parts[0] == "config" and path.name in DECLARATIONS):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                owner = node.value.func if isinstance(node.value, ast.Call) else node.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                found.add((name.lstrip("_"), node.attr))
    return found


def read_for_others(read: set[str]) -> set[str]:
    """Settings that are read through a property of theirs which somebody reads: `uses_tls` for `security_protocol`."""
    tree = ast.parse((ROOT / "config/security.py").read_text())
    settings = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "SecuritySettings")
    return {
        inner.attr
        for node in settings.body
        if isinstance(node, ast.FunctionDef) and node.name in read
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute) and getattr(inner.value, "id", "") == "self"
    }


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_setting_is_obeyed_by_something(section: type[BaseModel]) -> None:
    read = read_attributes()
    derived = read_for_others({name for owner, name in read if owner in SECTIONS[section]})
    idle = {
        name
        for name in section.model_fields
        if name not in SETTLED | RULED | derived and not any((owner, name) in read for owner in SECTIONS[section])
    }
    assert idle == set()


@pytest.mark.parametrize(
    "section",
    [PipelineSettings, LandSettings, PipelineTopicSettings, PipelineAuditSettings, SealSettings, ListenerSettings],
    ids=lambda section: section.__name__,
)
def test_every_setting_of_the_pipeline_is_obeyed_by_something_of_its_own(section: type[BaseModel]) -> None:
    owners = {
        "audit",
        "job",
        "kafka",
        "land",
        "listener",
        "location",
        "seal",
        "settings",
        "told",
        "topic",
        "found",
        "given",
    }
    read = {name for owner, name in read_attributes("pipeline/") if owner in owners}
    assert set(section.model_fields) - read == set()


def test_every_setting_of_the_direct_producer_is_obeyed_by_something_of_its_own() -> None:
    """What only the daemon obeys does not count. acks, idempotence and the push of metrics take several values here, and so
    are obeyed too."""
    read = {name for owner, name in read_attributes("producer/") if owner in {"kafka", "settings"}}
    assert set(DirectSettings.model_fields) - read - read_for_others(read) - RULED == SETTLED - {
        "acks",
        "enable_idempotence",
        "enable_metrics_push",
    }


def test_a_settled_setting_takes_one_value_only() -> None:
    for name in SETTLED:
        field = KafkaSettings.model_fields[name]
        accepted = set(getattr(field.annotation, "__args__", ()))
        assert accepted in ({"all", "-1"}, {True}, {False}, {"use_all_dns_ips"}), name


def test_every_exit_code_is_used_and_explained() -> None:
    used = {name for owner, name in read_attributes() if owner == "ExitCode"}
    assert {code.name for code in ExitCode} == used
    assert set(EXITS) == set(ExitCode)
