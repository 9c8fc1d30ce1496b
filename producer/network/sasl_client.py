"""Saying who we are: carries out what `producer/security/sasl.py` decides, on one connection, as often as its session is renewed."""

from collections.abc import Callable, Mapping
from typing import Final

from ...api.errors import AuthenticationError
from ..protocol.framing import StreamError
from ..security.sasl import Authenticated, Authentication, Later, Refused, Said, SaslRules, Send, Step
from .resolver import Resolver


class Login:
    """The exchanges of one connection, one at a time.

    `send` is given framed requests, `over` the end of each exchange. Both are called from inside `begin` and `answered`, or
    from the loop when a helper thread has done its part.
    """

    def __init__(
        self,
        rules: SaslRules,
        resolver: Resolver,
        client_id: str,
        *,
        send: Callable[[bytes], None],
        over: Callable[[Authenticated | Refused], None],
    ) -> None:
        self._rules: Final = rules
        self._resolver: Final = resolver
        self._client_id: Final = client_id
        self._send: Final = send
        self._over: Final = over
        self._exchange: Authentication | None = None
        self._work: int | None = None

    def begin(self, host: str, versions: Mapping[int, tuple[int, int]]) -> None:
        """Log in with a mechanism of its own, so that what was replaced since the last time counts."""
        assert self._exchange is None, "one exchange at a time"
        try:
            mechanism = self._rules.new_mechanism(host)
        except AuthenticationError as error:
            self._over(Refused(error.text))
            return
        self._exchange = Authentication(self._rules.mechanism, mechanism, versions, self._client_id)
        self._do(self._exchange.begin())

    def answered(self, answer: bytes) -> None:
        """
        Raises:
            StreamError: it is no answer to what was sent.
        """
        if self._exchange is None:
            raise StreamError("an answer while nothing was asked")
        self._do(self._exchange.answered(answer))

    def cancel(self) -> None:
        """The connection is gone, and the exchange with it."""
        self._exchange = None
        if self._work is not None:
            self._resolver.logins.cancel(self._work)
            self._work = None

    def _do(self, step: Step) -> None:
        match step:
            case Send(framed):
                self._send(framed)
            case Later(work):
                self._work = self._resolver.logins.run(lambda: _said(work), self._worked)
            case Authenticated() | Refused():
                self._exchange = None
                self._over(step)

    def _worked(self, said: Said) -> None:
        self._work = None
        assert self._exchange is not None, "cancelled work was told"
        self._do(self._exchange.worked(said))


def _said(work: Callable[[], bytes | None]) -> Said:
    """On a helper thread."""
    try:
        return Said(work())
    except AuthenticationError as error:
        return Said(error)
