"""One pass of a backward probe."""

import pytest
from penstock.producer.accumulator.batch import ProducerBatch
from penstock.producer.sender.log_end_probe import LogEndProbe, ProbeStep
from penstock.producer.sender.modes import LeaderConnection

HERE = LeaderConnection(1, 1, 0)


@pytest.fixture
def batches() -> list[ProducerBatch]:
    return [ProducerBatch(first, 10, 1, 0, first) for first in (0, 10, 20)]


def test_trials_go_from_the_newest_to_the_oldest_and_then_all_are_refused(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    tried = []
    for expected in (ProbeStep.TRY_NEXT, ProbeStep.TRY_NEXT, ProbeStep.ALL_REFUSED):
        target = probe.target(HERE)
        tried.append(target.first)
        assert probe.refused(target) is expected
    assert tried == [20, 10, 0]


def test_a_single_batch_is_tried_once_more(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches[:1], HERE)
    assert probe.refused(probe.target(HERE)) is ProbeStep.ALL_REFUSED


@pytest.mark.parametrize("elsewhere", [LeaderConnection(1, 2, 0), LeaderConnection(1, 1, 1), LeaderConnection(2, 1, 0)])
def test_another_connection_node_or_leader_epoch_begins_with_the_oldest(
    batches: list[ProducerBatch], elsewhere: LeaderConnection
) -> None:
    probe = LogEndProbe(batches, HERE)
    assert probe.refused(probe.target(HERE)) is ProbeStep.TRY_NEXT
    assert probe.target(elsewhere) is batches[0]
    assert probe.refused(batches[0]) is ProbeStep.TRY_NEXT
    assert probe.target(elsewhere) is batches[2], "and then the whole pass"


def test_a_lost_answer_begins_with_the_oldest_too(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    probe.start_again(HERE)
    assert probe.target(HERE) is batches[0]


def test_the_newest_refused_for_its_content_asks_for_the_batch_behind_it(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    assert probe.refused(batches[2], unclear=True) is ProbeStep.TRY_NEXT
    assert probe.refused(batches[1]) is ProbeStep.TRY_NEXT
    assert probe.refused(batches[0]) is ProbeStep.CUT_ANOTHER
    assert probe.target(HERE) is None
    behind = ProducerBatch(30, 1, 1, 0, 30)
    probe.one_more(behind)
    assert probe.target(HERE) is behind
    assert probe.refused(behind) is ProbeStep.ALL_REFUSED


def test_one_with_others_behind_it_is_passed_over(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    assert probe.refused(batches[2]) is ProbeStep.TRY_NEXT
    assert probe.refused(batches[1], unclear=True) is ProbeStep.TRY_NEXT
    assert probe.refused(batches[0]) is ProbeStep.ALL_REFUSED


def test_two_neighbours_refused_for_their_content_cannot_be_settled(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    assert probe.refused(batches[2], unclear=True) is ProbeStep.TRY_NEXT
    assert probe.refused(batches[1], unclear=True) is ProbeStep.INCONCLUSIVE


def test_nor_can_the_oldest_and_the_one_behind_all(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches, HERE)
    probe.start_again(HERE)
    assert probe.refused(batches[0], unclear=True) is ProbeStep.INCONCLUSIVE
    probe = LogEndProbe(batches[:1], HERE)
    assert probe.refused(batches[0], unclear=True) is ProbeStep.CUT_ANOTHER
    probe.one_more(batches[1])
    assert probe.refused(batches[1], unclear=True) is ProbeStep.INCONCLUSIVE


def test_the_batch_behind_belongs_to_the_next_pass(batches: list[ProducerBatch]) -> None:
    probe = LogEndProbe(batches[:1], HERE)
    assert probe.refused(batches[0], unclear=True) is ProbeStep.CUT_ANOTHER
    probe.one_more(batches[1])
    probe.start_again(HERE)
    assert probe.refused(batches[0]) is ProbeStep.TRY_NEXT
    assert probe.target(HERE) is batches[1]
