"""Counts of tests that long runs raise."""

import os
from typing import Final

MODEL_EXAMPLES: Final = "PENSTOCK_MODEL_EXAMPLES"


def count_from(name: str, usual: int) -> int:
    """A count that the environment may raise, as `make soak` does."""
    text = os.environ.get(name)
    return int(text) if text else usual


def model_examples(usual: int) -> int:
    """How many examples a model is given: `usual`, scaled by PENSTOCK_MODEL_EXAMPLES, where 100 leaves it as it is."""
    return max(1, usual * count_from(MODEL_EXAMPLES, 100) // 100)
