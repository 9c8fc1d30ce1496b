"""Tokens that end while a producer sends: each login gets one that is fresh enough, and no record notices."""

from typing import Final

from penstock.producer import DirectProducer

from tests.harness.processes import wait_until
from tests.harness.secure_kafka import OPEN, SECRET, SecureKafka, Way
from tests.harness.token_server import Registered

SHORT: Final = "short-lived"
LIFETIME_S: Final = 5
TOKENS: Final = 3
ANSWER_S: Final = 20
PAUSE_S: Final = 0.05


def test_records_go_on_while_tokens_end_and_are_renewed(secure: SecureKafka, topic_name: str) -> None:
    secure.tokens.register(SHORT, Registered(SECRET, lifetime_s=LIFETIME_S))
    topic = secure.cluster.create_topic(OPEN + topic_name, 1)
    settings = {"bootstrap.servers": secure.bootstrap(Way.OAUTH), **secure.settings(Way.OAUTH, user=SHORT)}
    sent = 0
    with DirectProducer(settings) as producer:

        def renewed() -> bool:
            nonlocal sent
            assert producer.send(topic, b"value").result(ANSWER_S).offset == sent
            sent += 1
            return secure.tokens.asked.count(SHORT) >= TOKENS

        _ = wait_until(renewed, seconds=TOKENS * LIFETIME_S + ANSWER_S, what="tokens were renewed", every=PAUSE_S)
    # No more often than their window says: they last 80 % of their life at least.
    assert secure.tokens.asked.count(SHORT) == TOKENS
    assert sent > TOKENS
