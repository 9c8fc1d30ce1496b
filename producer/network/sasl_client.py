"""SASL authentication and re-authentication on one connection: carries out the decisions of
`producer/security/sasl.py`."""

from collections.abc import Callable, Mapping
from typing import Final

from ...api.errors import AuthenticationError
from ..protocol.framing import StreamError
from ..security.sasl import (
    Authenticated,
    AuthenticationFailed,
    BlockingResult,
    BlockingStep,
    SaslAuthentication,
    SaslRequest,
    SaslRules,
    SaslStep,
)
from .resolver import Resolver


class SaslClient:
    """The SASL exchanges of one connection, one at a time.

    `send` receives framed requests, `over` the result of each exchange. Both are called from `begin` and `answered`, or
    from the loop when a helper thread has finished.
    """

    def __init__(
        self,
        rules: SaslRules,
        resolver: Resolver,
        client_id: str,
        *,
        send: Callable[[bytes], None],
        over: Callable[[Authenticated | AuthenticationFailed], None],
    ) -> None:
        self._rules: Final = rules
        self._resolver: Final = resolver
        self._client_id: Final = client_id
        self._send: Final = send
        self._on_end: Final = over
        self._exchange: SaslAuthentication | None = None
        self._blocking_call: int | None = None

    def begin(self, host: str, versions: Mapping[int, tuple[int, int]]) -> None:
        """Start an exchange with a new mechanism, so that credentials replaced since the last one take effect."""
        assert self._exchange is None, "one exchange at a time"
        try:
            mechanism = self._rules.new_mechanism(host)
        except AuthenticationError as error:
            self._on_end(AuthenticationFailed(error.text))
            return
        self._exchange = SaslAuthentication(self._rules.mechanism, mechanism, versions, self._client_id)
        self._run_step(self._exchange.begin())

    def answered(self, answer: bytes) -> None:
        """Process a response.

        Raises:
            StreamError: it is not a response to the last request.
        """
        if self._exchange is None:
            raise StreamError("an answer while nothing was asked")
        self._run_step(self._exchange.answered(answer))

    def cancel(self) -> None:
        """Abort the exchange: the connection has ended."""
        self._exchange = None
        if self._blocking_call is not None:
            self._resolver.logins.cancel(self._blocking_call)
            self._blocking_call = None

    def _run_step(self, step: SaslStep) -> None:
        match step:
            case SaslRequest(framed):
                self._send(framed)
            case BlockingStep(work):
                self._blocking_call = self._resolver.logins.run(lambda: _run_blocking(work), self._blocking_step_done)
            case Authenticated() | AuthenticationFailed():
                self._exchange = None
                self._on_end(step)

    def _blocking_step_done(self, said: BlockingResult) -> None:
        self._blocking_call = None
        assert self._exchange is not None, "cancelled work was told"
        self._run_step(self._exchange.blocking_step_done(said))


def _run_blocking(work: Callable[[], bytes | None]) -> BlockingResult:
    """Run a mechanism's blocking work. Called on a helper thread."""
    try:
        return BlockingResult(work())
    except AuthenticationError as error:
        return BlockingResult(error)
