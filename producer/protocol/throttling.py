"""Which answers ask the client to be silent for a while (KIP-219). In older versions the broker has waited itself before it
answered, and tells so: to wait again would double it."""

from typing import Final

_PRODUCE: Final = 0
_LIST_OFFSETS: Final = 2
_METADATA: Final = 3
_API_VERSIONS: Final = 18
_DESCRIBE_CONFIGS: Final = 32
_CLIENT_WAITS_FROM: Final = {_PRODUCE: 6, _LIST_OFFSETS: 3, _METADATA: 6, _API_VERSIONS: 2, _DESCRIBE_CONFIGS: 2}
_OTHERS_FROM: Final = 1


def should_client_throttle(api_key: int, version: int) -> bool:
    """A throttle time in an answer of this version is for the client to keep."""
    return version >= _CLIENT_WAITS_FROM.get(api_key, _OTHERS_FROM)
