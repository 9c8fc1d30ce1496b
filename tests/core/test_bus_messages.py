"""What goes over the bus comes back as what it was, nested rows included."""

from penstock.wire.messages import Envelope, RecordError, Refused, decode, encode


def test_the_errors_of_records_come_back_as_rows_that_can_be_compared_and_hashed() -> None:
    sent = Refused(
        3, 7, 100, 5, 87, "One or more records have been rejected", [(2, "no key"), (4, "no key")], ambiguous=False
    )
    envelope, received = decode(encode(Envelope(1, 2, 3, 4), sent))
    assert envelope == Envelope(1, 2, 3, 4)
    assert received == sent
    assert isinstance(received, Refused)
    assert set(received.record_errors) == {RecordError(2, "no key"), RecordError(4, "no key")}
