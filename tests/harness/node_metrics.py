"""A broker's own metrics, read by the JmxTool of Kafka's tools."""

import subprocess
from collections import Counter
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

    def sums(self, pattern: str) -> Counter[str]:
        """The attributes of all beans that the pattern matches, each summed over the beans. Raise CalledProcessError."""
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
        sums: Counter[str] = Counter()
        for line in done.stdout.decode().splitlines():
            name, equals, value = line.rpartition("=")
            # The first line is the time alone; what has no number yet is NaN.
            if equals and ":" in name and value != "NaN":
                sums[name.rpartition(":")[2]] += int(float(value))
        return sums
