"""A password that systemd hands to the unit, by the commands and files of the page about it."""

import re
from typing import Final

import pytest

from tests.harness.processes import wait_until

from .box import Box
from .conftest import ROOT

pytestmark = pytest.mark.systemd
PAGE: Final = ROOT / "docs/howto/secure-kafka.md"
PASSWORD: Final = "CANARY_correct_horse"
SECRETS: Final = "/etc/penstock/secrets"
HEALTH: Final = (
    "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9797/healthz', timeout=2).read().decode())"
)
"""Asked inside of the box."""


def example(language: str, name: str) -> str:
    """The file of this name among the page's examples."""
    for found in re.finditer(rf"```{language}\n# (\S+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if found[1] == name:
            return found[2]
    raise AssertionError(f"{PAGE} shows no {name}")


def write(box: Box, path: str, text: str) -> None:
    _ = box.run("sh", "-c", f"mkdir -p $(dirname {path}) && printf '%s' '{text}' >{path}")


def test_a_password_comes_by_credential_and_stands_in_nobodys_environment(box: Box) -> None:
    python = "/opt/penstock/bin/python"
    unit = "/etc/systemd/system/penstock.service.d/credentials.conf"
    settings = "/etc/penstock/conf.d/login.toml"
    # The broker beside it speaks no TLS, and would not be told a password without this.
    in_the_clear = example("toml", settings).replace('"SASL_SSL"', '"SASL_PLAINTEXT"\nsasl.allow_plaintext = true')
    write(box, unit, example("ini", unit))
    write(box, settings, in_the_clear)
    write(box, f"{SECRETS}/kafka.password", PASSWORD)
    _ = box.run("sh", "-c", f"chmod 0600 {SECRETS}/kafka.password && chmod 0700 {SECRETS}")
    _ = box.run("sh", "-c", "systemctl daemon-reload && systemctl restart penstock")

    def refused() -> str | None:
        said = box.run(python, "-c", HEALTH, check=False).stdout
        return said if "authentication failed" in said else None

    said = wait_until(refused, seconds=60, what="the daemon got as far as its login")
    assert "the broker offers no SASL" in said, "the password was read, and there was nobody to tell it to"
    assert "sasl.allow_plaintext = true" in said
    reader = box.run(
        "sh",
        "-c",
        "setpriv --reuid penstock --regid penstock --clear-groups cat /etc/penstock/secrets/kafka.password",
        check=False,
    )
    assert reader.returncode != 0, "its own user cannot read the file it came from"
    everywhere = box.run("sh", "-c", "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'").stdout
    assert "penstock.daemon.router.main" in everywhere
    assert PASSWORD not in everywhere
    assert PASSWORD not in box.journal("penstock")
    shown = (
        box.run("/opt/penstock/bin/penstock", "config", "show").stdout
        + box.run("/opt/penstock/bin/penstock", "status", "--json").stdout
    )
    assert "/run/credentials/penstock.service/kafka.password" in shown
    assert PASSWORD not in shown
