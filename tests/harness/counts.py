"""Counts of tests that long runs raise."""

import os


def count_from(name: str, usual: int) -> int:
    """A count that the environment may raise, as `make soak` does."""
    text = os.environ.get(name)
    return int(text) if text else usual
