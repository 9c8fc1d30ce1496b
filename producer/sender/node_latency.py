"""For how long something for a node has been ready to go and could not: what leaves slow nodes out of the choice of a partition."""


class NodeLatencyStats:
    """Two moments of one node. They move only in rounds that have something for it: nothing to send says nothing of it."""

    def __init__(self) -> None:
        self.ready_at = 0.0
        """When there was last something to send."""
        self.drained_at = 0.0
        """When it could last be sent."""

    def update(self, *, could_send: bool, now: float) -> None:
        """There is something for the node. `could_send`: its connection takes a request."""
        if could_send or not self.drained_at:
            # The time before anything was wanted of the node does not count.
            self.drained_at = now
        self.ready_at = now

    @property
    def waited_s(self) -> float:
        """For how long, up to the last look, something has waited for the node; 0: it goes out when it comes."""
        return self.ready_at - self.drained_at
