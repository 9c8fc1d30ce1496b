"""Which throttle times the client must observe (KIP-219). In older versions the broker has already waited before it
responded, and only reports the time: waiting again would double it."""

from typing import Final

_PRODUCE: Final = 0
_LIST_OFFSETS: Final = 2
_METADATA: Final = 3
_API_VERSIONS: Final = 18
_DESCRIBE_CONFIGS: Final = 32
_CLIENT_WAITS_FROM: Final = {_PRODUCE: 6, _LIST_OFFSETS: 3, _METADATA: 6, _API_VERSIONS: 2, _DESCRIBE_CONFIGS: 2}
_OTHERS_FROM: Final = 1


def should_client_throttle(api_key: int, version: int) -> bool:
    """Whether the client must observe the throttle time of a response of this version."""
    return version >= _CLIENT_WAITS_FROM.get(api_key, _OTHERS_FROM)
