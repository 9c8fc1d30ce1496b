"""Brokers to begin with, as people write them."""

import pytest
from penstock.config.bootstrap import parse_bootstrap


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:1", [("a", 1)]),
        (" a:1 , b:2,,a:1", [("a", 1), ("b", 2)]),
        ("[::1]:9092,10.0.0.1:9092", [("::1", 9092), ("10.0.0.1", 9092)]),
        ("[plain]:65535", [("plain", 65535)]),
    ],
)
def test_bootstrap_servers_are_read(text: str, found: list[tuple[str, int]]) -> None:
    assert parse_bootstrap(text) == found


@pytest.mark.parametrize("text", ["", " , ", "a", "a:", ":1", "a:0", "a:65536", "a:x", "::1:9092", "a:-1", "a:¹"])
def test_a_wrong_entry_of_bootstrap_servers_is_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"bootstrap\.servers"):
        _ = parse_bootstrap(text)
