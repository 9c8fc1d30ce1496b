"""The judge of transactional runs notices each kind of fault."""

from pathlib import Path

import pytest

from tests.harness.transaction_judge import End, Transaction, judge, read_transactions

SENT = {
    "app": {
        0: Transaction(2, End.COMMITTED),
        1: Transaction(2, End.ABORTED),
        2: Transaction(1, End.LEFT),
        3: Transaction(2, End.DOUBTFUL),
        4: Transaction(2, End.COMMITTED),
        5: Transaction(1, End.UNSEEN),
    }
}
GOOD = [(0, "app/0/0"), (1, "app/0/1"), (0, "app/4/0"), (0, "app/4/1")]


def test_a_run_without_faults_passes() -> None:
    verdict = judge(SENT, GOOD)
    assert verdict.wrong() == []
    assert verdict.ends[End.COMMITTED] == 2
    assert verdict.unseen_missing == 1


def test_a_transaction_in_doubt_may_be_there_whole() -> None:
    assert judge(SENT, [*GOOD[:2], (0, "app/3/0"), (1, "app/3/1"), *GOOD[2:]]).wrong() == []


@pytest.mark.parametrize(
    ("read", "figure"),
    [
        (GOOD[:2], "lost"),
        ([*GOOD, (2, "app/1/0"), (2, "app/1/1")], "leaked"),
        ([*GOOD, (2, "app/2/0")], "leaked"),
        (GOOD[:3], "torn"),
        ([*GOOD, (2, "app/3/1")], "torn"),
        ([*GOOD, (2, "app/0/0")], "doubled"),
        ([GOOD[2], GOOD[0], GOOD[1], GOOD[3]], "reordered"),
        ([*GOOD, (2, "app/9/0")], "strange"),
        ([*GOOD, (2, "other/0/0")], "strange"),
        ([*GOOD, (2, "app/0/2")], "strange"),
    ],
)
def test_each_fault_is_named(read: list[tuple[int, str]], figure: str) -> None:
    verdict = judge(SENT, read)
    assert getattr(verdict, figure) == 1
    assert any(line.startswith(f"{figure} = 1") for line in verdict.wrong())


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    lines = [
        *(
            "begin 0 2",
            "committing 0",
            "committed 0",
            "begin 1 1",
            "aborting 1",
            "aborted 1",
            "begin 2 3",
            "committing 2",
        ),
        *("begin 3 1", "committing 3", "aborting 3", "begin 4 1", "committing 4", "unseen 4", "begin 5 1", "comm"),
    ]
    _ = path.write_text("\n".join(lines))
    ends = {number: transaction.end for number, transaction in read_transactions(path).items()}
    assert ends == {
        0: End.COMMITTED,
        1: End.ABORTED,
        2: End.DOUBTFUL,
        3: End.LEFT,
        4: End.UNSEEN,
        5: End.LEFT,
    }
