"""The direct producer's hot path, compiled and uncompiled: the same rows, partitions and futures."""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UNCOMPILED: Final = """
import importlib.util, sys
from importlib.machinery import SourceFileLoader
NAMES = ("arguments", "chunks", "futures", "slices", "msgpack", "columns", "records", "frames", "append")
class Plain:
    def find_spec(self, name, path=None, target=None):
        last = name.rpartition(".")[2]
        if name.startswith("penstock.producer.kernel.") and last in NAMES:
            source = f"producer/kernel/{last}.py"
            return importlib.util.spec_from_file_location(name, source, loader=SourceFileLoader(name, source))
        return None
sys.meta_path.insert(0, Plain())
"""
SCRIPT: Final = """
import random, sys
sys.path.insert(0, ".")
from penstock.producer.kernel import append
from tests.fakes.front_world import FrontWorld
print(append.__file__.endswith(".py"), file=sys.stderr)
chance = random.Random(7)
def blob(limit):
    return None if chance.random() < 0.1 else chance.randbytes(chance.choice([0, 1, chance.randrange(limit), 63, 64]))
def headers():
    return None if chance.random() < 0.5 else [(str(i), blob(90)) for i in range(chance.randrange(4))]
for settings in ({}, {"partitioner_ignore_keys": True}, {"batch_size": 300}):
    world = FrontWorld(5, **settings)
    futures = []
    for i in range(300):
        if i % 3:
            at = chance.choice([None, None, i % 5])
            stamp = chance.choice([None, i, 1 << 60])
            futures.append(world.send("topic", blob(400), blob(30), headers=headers(), partition=at, timestamp_ms=stamp))
        else:
            n = chance.randrange(1, 9)
            futures.append(world.send_many("topic", [blob(300) for _ in range(n)], [blob(9) for _ in range(n)],
                headers=[headers() for _ in range(n)], partitions=[chance.choice([None, 2]) for _ in range(n)],
                timestamps_ms=[chance.choice([None, 5]) for _ in range(n)]))
        if i % 40 == 39:
            for sealed in world.take():
                print(tuple(sealed), world._front.arena.read(sealed.segment, 0, sealed.length).hex())
    world.deliver(100)
    for future in futures:
        if future.done():
            print(future.result(0))
"""


def run(prelude: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", prelude + SCRIPT], check=True, capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    return done.stdout, done.stderr.split()[-1]


def test_rows_and_futures_are_the_same_compiled_and_uncompiled() -> None:
    compiled, is_source = run("")
    assert is_source == "False"
    plain, is_source = run(UNCOMPILED)
    assert is_source == "True"
    assert len(compiled.splitlines()) > 100
    assert plain == compiled
