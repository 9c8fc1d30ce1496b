"""Parses `bootstrap.servers`."""


def parse_bootstrap(text: str) -> list[tuple[str, int]]:
    """Return the `host:port` pairs of a comma-separated list; IPv6 addresses are in brackets.

    Raises ValueError, which names the wrong entry.
    """
    found: dict[tuple[str, int], None] = {}
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        host, colon, port = entry.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not colon or not bare or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ValueError(f"bootstrap.servers: {entry!r} is not host:port")
        if ":" in bare and not (host.startswith("[") and host.endswith("]")):
            raise ValueError(f"bootstrap.servers: {entry!r}: an IPv6 address stands in brackets, [address]:port")
        found[bare, int(port)] = None
    if not found:
        raise ValueError("bootstrap.servers names no broker")
    return list(found)
