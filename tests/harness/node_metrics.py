"""A broker's own metrics, read by the JmxTool of Kafka's tools."""

import subprocess
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from .kafka_node import kafka_libs

READ_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class JmxPort:
    """Where a node of this version offers its metrics, on the loopback."""

    version: str
    port: int

    def properties(self) -> dict[str, str]:
        """What the node's JVM is started with."""
        prefix = "com.sun.management.jmxremote"
        return {
            f"{prefix}.port": str(self.port),
            f"{prefix}.rmi.port": str(self.port),
            f"{prefix}.host": "127.0.0.1",
            "java.rmi.server.hostname": "127.0.0.1",
            f"{prefix}.authenticate": "false",
            f"{prefix}.ssl": "false",
        }

    def by_listener(self) -> dict[str, Counter[str]]:
        """Each listener's counts of connections and authentications, over all its threads. Raise CalledProcessError."""
        return self._sums("kafka.server:type=socket-server-metrics,listener=*,networkProcessor=*", "listener")

    def throttled_ms(self, user: str, kind: str) -> int:
        """For how long on average requests of this user were held up lately; `kind` is `Produce` or `Request`."""
        found = self._sums(f"kafka.server:type={kind},user={user}", "user")
        return found[user]["throttle-time"]

    def _sums(self, pattern: str, by: str) -> dict[str, Counter[str]]:
        """The attributes of all beans that the pattern matches, summed over those with the same value of the property `by`."""
        done = subprocess.run(
            [
                *("java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-cp", f"{kafka_libs(self.version)}/*", "org.apache.kafka.tools.JmxTool"),
                *("--jmx-url", f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self.port}/jmxrmi"),
                *("--one-time", "--object-name", pattern, "--report-format", "properties"),
            ],
            check=True,
            capture_output=True,
            timeout=READ_S,
            stdin=subprocess.DEVNULL,
        )
        sums: dict[str, Counter[str]] = defaultdict(Counter)
        for line in done.stdout.decode().splitlines():
            name, equals, value = line.rpartition("=")
            bean, _, attribute = name.rpartition(":")
            # The first line is the time alone; what has no number yet is NaN.
            if equals and bean and value != "NaN":
                properties = dict(pair.split("=") for pair in bean.partition(":")[2].split(","))
                sums[properties[by]][attribute] += int(float(value))
        return sums
