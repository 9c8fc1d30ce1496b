"""The parts of docs/design/transactions.md that are the tables of the code. `make docs` writes them between their marks.

python -m tests.meta.transaction_page
"""

import re
from pathlib import Path
from typing import Final

from penstock.producer.protocol.error_codes import error_name
from penstock.producer.transactions.request_queue import priority_of
from penstock.producer.transactions.requests import (
    NO_IDENTITY,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    CoordinatorKind,
    DescribeTransaction,
    EndTxn,
    FindCoordinator,
    GroupMetadata,
    InitProducerId,
    TransactionRequest,
    api_of,
    coordinator_kind_of,
    version_range,
)
from penstock.producer.transactions.states import (
    DEFAULT_REACTIONS,
    REACTIONS,
    TRANSITIONS,
    Reaction,
    TransactionApi,
    TransactionManagerState,
    reaction_to,
)

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/design/transactions.md"
MARKED: Final = re.compile(r"(<!-- (\w+): made by `make docs` -->\n).*?(<!-- end -->)", re.DOTALL)
MEMBER: Final = GroupMetadata("group", 1, "member")
ASKS: Final[dict[int, tuple[TransactionRequest, ...]]] = {
    version: (
        FindCoordinator(CoordinatorKind.TRANSACTION, "id"),
        InitProducerId("id", 60_000, NO_IDENTITY),
        *(() if version != 1 else (AddPartitions("id", NO_IDENTITY, ()), AddOffsets("id", NO_IDENTITY, "group"))),
        CommitOffsets("id", NO_IDENTITY, MEMBER, (), version),
        EndTxn("id", NO_IDENTITY, commit=True, version=version),
        DescribeTransaction("id"),
    )
    for version in (1, 2)
}


def diagram() -> str:
    """Every arrow of the table of states. All states lead to FatalError: one note says so."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {TransactionManagerState.UNINITIALIZED.value}"]
    lines += [
        f"    {state.value} --> {following.value}"
        for state, row in TRANSITIONS.items()
        for following in TransactionManagerState
        if following in row
    ]
    return "\n".join([*lines, "```"])


def reactions() -> str:
    """A line for each error that some request's row knows, a column for each request."""
    codes = sorted({code for row in REACTIONS.values() for code in row} - {0})
    again = [code for code in codes if _everywhere_again(code)]
    head = ["error", *(request.value for request in TransactionApi)]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [_line(error_name(code), code) for code in codes if code not in again]
    lines.append(f"| anything else | {' | '.join(DEFAULT_REACTIONS[request].value for request in TransactionApi)} |")
    names = ", ".join(error_name(code) for code in again)
    return "\n".join([*lines, "", f"*Again* everywhere but for Produce, whose retries are not decided here: {names}."])


def _everywhere_again(code: int) -> bool:
    return all(
        reaction_to(request, code) is Reaction.RETRY
        for request in TransactionApi
        if request is not TransactionApi.PRODUCE
    )


def _line(name: str, code: int) -> str:
    return f"| {name} | {' | '.join(reaction_to(request, code).value for request in TransactionApi)} |"


def requests() -> str:
    """Whom each request goes to, how urgent it is, and in which versions."""
    lines = ["| request | goes to | urgency | versions in TV1 | versions in TV2 |", "|---|---|---|---|---|"]
    second = {api_of(ask): ask for ask in ASKS[2]}
    for ask in ASKS[1]:
        kind = coordinator_kind_of(ask)
        to = "any broker" if kind is None else f"coordinator of the {kind.name.lower()}"
        twin = second.get(api_of(ask))
        spans = [_span(ask), "not sent" if twin is None else _span(twin)]
        lines.append(f"| {api_of(ask).value} | {to} | {int(priority_of(ask))} | {spans[0]} | {spans[1]} |")
    return "\n".join(lines)


def _span(ask: TransactionRequest) -> str:
    least, greatest = version_range(ask)
    return str(least) if least == greatest else f"{least} to {greatest}"


def filled(text: str) -> str:
    """The page with its marked parts made anew. Raises KeyError for a part nobody makes."""
    makers = {"diagram": diagram, "reactions": reactions, "requests": requests}
    return MARKED.sub(lambda found: f"{found[1]}{makers[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
