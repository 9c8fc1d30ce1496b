"""A shard that only talks: says HELLO, keeps a journal, then does what its orders say. Run as a process by the bus tests.

Orders come as lines on standard input; every step is told as a line on standard output.
"""

import os
import sys
import threading
from pathlib import Path

import zmq
from penstock.shards.journal import open_journal
from penstock.wire.message_codec import Envelope, decode, encode
from penstock.wire.messages import BatchesDone, DoneBatch, Ping, RouterMessage, ShardHello, ShardWelcome


class TalkingShard:
    def __init__(self, path: str, journals: str, seat: int, start: int, digest: str) -> None:
        self.journals = Path(journals)
        self.seat, self.start, self.digest = seat, start, digest
        self.router_start = self.seq = 0
        self.processed = -1
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, f"shard-{seat}-{start}".encode())
        self.socket.connect(f"ipc://{path}")

    def say(self, message: object, *, skip: int = 0) -> None:
        envelope = Envelope(self.router_start, self.start, self.seq + skip, self.processed)
        self.socket.send(encode(envelope, message))
        self.seq += 1 + skip

    def hear(self) -> RouterMessage:
        envelope, message = decode(self.socket.recv())
        assert envelope.seq == self.processed + 1, (envelope, self.processed)
        self.processed = envelope.seq
        if isinstance(message, ShardWelcome):
            self.router_start = envelope.router_start
        if not isinstance(message, Ping):
            tell(f"heard {type(message).__name__} ack {envelope.ack}")
        elif envelope.ack == self.seq - 1:
            tell(f"acked {envelope.ack}")
        return message

    def run(self) -> None:
        self.say(ShardHello(self.seat, os.getpid(), "", self.digest))
        while not isinstance(self.hear(), ShardWelcome):
            pass
        self.journal = open_journal(
            self.journals, seat=self.seat, shard_start=self.start, router_start=self.router_start
        )
        tell("journal " + self.journal.name)
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(sys.stdin, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self.socket in ready:
                self.hear()
            if sys.stdin.fileno() in ready:
                orders = os.read(sys.stdin.fileno(), 65_536).decode()
                if not orders:
                    return
                for line in orders.splitlines():
                    self.obey(line.split())

    def obey(self, words: list[str]) -> None:
        match words:
            case ["name"]:
                self.say(ShardHello(self.seat, os.getpid(), self.journal.name, self.digest))
            case ["name", other]:
                self.say(ShardHello(self.seat, os.getpid(), other, self.digest))
            case ["ping"]:
                self.say(Ping())
            case ["skip"]:
                self.say(Ping(), skip=1)
            case ["garbage"]:
                self.socket.send(b"\xc1 nothing")
            case ["parts"]:
                self.socket.send_multipart([b"one", b"two"])
            case ["cut", partition, generation, first, count]:
                self.journal.record(int(partition), int(generation), int(first), int(count), producer_id=7, epoch=0)
            case ["done", partition, generation, first, count]:
                item = DoneBatch(int(partition), int(generation), int(first), int(count), 0, 0, -1, 0, 0, 1)
                self.say(BatchesDone([item]))
            case ["child"]:
                # Against the rules (LSE-4): a child that keeps the journal's lock past our end.
                child = os.fork()
                if child == 0:
                    threading.Event().wait()
                tell(f"child {child}")
            case _:
                raise AssertionError(words)
        tell("did " + words[0])


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    TalkingShard(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]).run()
