"""Tells a run: what went wrong, and what the producer's log says. `python -m tests.sim.story [transactions] SEED`."""

import logging
import sys
from collections.abc import Callable

from .faults import Faults
from .network import Network
from .runs import Result, run
from .transactions import Application, Sent
from .transactions import Result as TransactionsResult
from .transactions import run as run_transactions


def tell(seed: int, play: Callable[[int], Result | TransactionsResult]) -> None:
    """Print the events of a run, and how it ended."""
    nets: list[Network] = []
    begin, note = Network.__init__, Faults._note

    def begun(self: Network, *given: object) -> None:
        nets.append(self)
        begin(self, *given)  # type: ignore[arg-type]

    def noted(self: Faults, what: str) -> None:
        note(self, what)
        print(self.log[-1])

    def ended(self: Application, one: Sent) -> None:
        end(self, one)
        print(self.log[-1])

    class Stamped(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return f"{nets[-1].now - 1000:.3f}     {record.getMessage()}"

    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Stamped())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    Network.__init__, Faults._note = begun, noted  # type: ignore[method-assign]
    end, Application._note = Application._note, ended  # type: ignore[method-assign]
    result = play(seed)
    print(result._replace(events=[]))


if __name__ == "__main__":
    tell(int(sys.argv[-1]), run_transactions if "transactions" in sys.argv else run)
