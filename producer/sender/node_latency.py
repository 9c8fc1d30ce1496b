"""Measures how long batches for a node were ready but could not be sent. The partitioner excludes slow nodes by it."""


class NodeLatencyStats:
    """Latency of one node. Updated only in rounds with something to send to it: an idle node shows no latency."""

    def __init__(self) -> None:
        self.ready_at = 0.0
        """When a batch was last ready to send."""
        self.drained_at = 0.0
        """When a batch could last be sent; at first the time of the first `update`."""

    def update(self, *, could_send: bool, now: float) -> None:
        """Record that something is ready for the node. `could_send`: its connection accepts a request now."""
        if could_send or not self.drained_at:
            # The time before the first batch for the node does not count.
            self.drained_at = now
        self.ready_at = now

    @property
    def waited_s(self) -> float:
        """How long batches had waited for the node at the last `update`; 0: they could be sent at once."""
        return self.ready_at - self.drained_at
