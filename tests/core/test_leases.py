"""The lease table, row by row."""

from penstock.wire.messages import FIRST, OPEN, Grant, Nodes, Pace

from tests.fakes.lease_desk import Desk, of_kind, refs


def test_a_slice_goes_from_push_to_its_end() -> None:
    desk = Desk()
    desk.partition(0)
    desk.up()
    piece = desk.push(0, 10)

    said = desk.settle()

    grant = of_kind(said, Grant)[0]
    assert (grant.pace, grant.next_ordinal, grant.generation) == (FIRST, 0, 1)
    assert [(ref.first, ref.count) for ref in refs(said)] == [(0, 10)]
    desk.done(grant, 0, 1)
    pace = of_kind(desk.settle(), Pace)[0]
    assert pace.pace == OPEN
    desk.done(grant, 1, 9)
    desk.settle()
    assert [one.slice for one in desk.ended] == [piece]
    assert [(run.offset, run.count) for run in desk.ended[0].runs] == [(0, 1), (1, 9)]


def test_a_shard_hears_of_its_nodes_before_any_grant() -> None:
    desk = Desk()
    desk.partition(0)
    desk.up()
    desk.push(0, 1)

    said = [(seat, type(message)) for seat, message in desk.settle()]

    assert said.index((0, Nodes)) < said.index((0, Grant))
