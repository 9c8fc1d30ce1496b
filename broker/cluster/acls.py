"""Who may do what. Without authentication a client's id stands for its principal.

Off at first: everybody may do everything. Once a rule is there, what no rule allows is forbidden, and what one denies is
forbidden whatever others allow.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

RULES_MAX: Final = 1000
ANY: Final = "*"


class TooManyAclsError(ValueError):
    """More rules than are kept."""


class AclOperation(Enum):
    """What Kafka calls an operation, as far as it is looked at here."""

    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class AclResourceType(Enum):
    """What an operation is done to."""

    TOPIC = "TOPIC"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    GROUP = "GROUP"


DESCRIBED_BY: Final = frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER})
"""Whoever may do one of these may describe, too."""

CLUSTER_NAME: Final = "kafka-cluster"


class AclBinding(NamedTuple):
    """One rule."""

    client_id: str
    """`*`: everybody."""

    operation: AclOperation
    resource: AclResourceType
    name: str = ANY
    """`*`: all."""

    prefix: bool = False
    """`name` is the beginning of a name."""

    deny: bool = False

    def matches(self, name: str) -> bool:
        """Whether the rule means this resource."""
        return self.name in {ANY, name} or (self.prefix and name.startswith(self.name))


class Authorizer:
    """The rules of one node."""

    def __init__(self) -> None:
        self._grants: list[AclBinding] = []
        self._checking = False

    def add(self, grant: AclBinding) -> None:
        """Add a rule; from now on what is not allowed is forbidden.

        Raises:
            TooManyGrantsError: `RULES_MAX` are there already.
        """
        if len(self._grants) >= RULES_MAX:
            raise TooManyAclsError(f"{RULES_MAX} rules are there already")
        self._grants.append(grant)
        self._checking = True

    def remove(self, grant: AclBinding) -> None:
        """Take a rule away, if it is there; nothing is allowed by that."""
        self._grants = [one for one in self._grants if one != grant]

    def clear(self) -> None:
        """Allow everything again."""
        self._grants.clear()
        self._checking = False

    def is_allowed(
        self, client_id: str, operation: AclOperation, resource: AclResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Whether a client may do this."""
        if not self._checking:
            return True
        rules = [one for one in self._of(client_id, resource) if one.matches(name)]
        if any(one.deny and one.operation is operation for one in rules):
            return False
        enough = {operation} | (DESCRIBED_BY if operation is AclOperation.DESCRIBE else frozenset[AclOperation]())
        return any(not one.deny and one.operation in enough for one in rules)

    def may_produce_idempotently(self, client_id: str) -> bool:
        """Whether a client gets a producer id: by a right of its own, or because it may write to any topic, even one to come."""
        if self.is_allowed(client_id, AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER):
            return True
        writes = [one for one in self._of(client_id, AclResourceType.TOPIC) if one.operation is AclOperation.WRITE]
        denied = [one for one in writes if one.deny]
        return any(not one.deny and not any(_covers(no, one) for no in denied) for one in writes)

    def _of(self, client_id: str, resource: AclResourceType) -> list[AclBinding]:
        return [one for one in self._grants if one.client_id in {ANY, client_id} and one.resource is resource]


def _covers(denial: AclBinding, grant: AclBinding) -> bool:
    """Whether a denial leaves nothing of what a rule allows."""
    if denial.name == ANY:
        return True
    if grant.name == ANY or (grant.prefix and not denial.prefix):
        return False
    return grant.name.startswith(denial.name) if denial.prefix else grant.name == denial.name
