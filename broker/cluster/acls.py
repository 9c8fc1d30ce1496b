"""Access control lists. Without authentication a client's id serves as its principal.

Checks are off at first: every client may do everything. Once a rule is added, everything that no rule allows is
forbidden, and a deny rule overrides all allow rules.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

RULES_MAX: Final = 1000
ANY: Final = "*"


class TooManyAclsError(ValueError):
    """Too many rules."""


class AclOperation(Enum):
    """Kafka's ACL operations that this broker checks."""

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
    """Type of the resource of an operation."""

    TOPIC = "TOPIC"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    GROUP = "GROUP"


DESCRIBED_BY: Final = frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER})
"""Each of these operations implies DESCRIBE."""

CLUSTER_NAME: Final = "kafka-cluster"


class AclBinding(NamedTuple):
    """One rule."""

    client_id: str
    """`*`: every client."""

    operation: AclOperation
    resource: AclResourceType
    name: str = ANY
    """`*`: every resource."""

    prefix: bool = False
    """Whether `name` is a prefix."""

    deny: bool = False

    def matches(self, name: str) -> bool:
        """Return whether the rule applies to this resource."""
        return self.name in {ANY, name} or (self.prefix and name.startswith(self.name))


class Authorizer:
    """The rules of one node."""

    def __init__(self) -> None:
        self._grants: list[AclBinding] = []
        self._checking = False

    def add(self, grant: AclBinding) -> None:
        """Add a rule; from now on everything that is not allowed is forbidden.

        Raises:
            TooManyAclsError: there are already `RULES_MAX` rules.
        """
        if len(self._grants) >= RULES_MAX:
            raise TooManyAclsError(f"{RULES_MAX} rules are there already")
        self._grants.append(grant)
        self._checking = True

    def remove(self, grant: AclBinding) -> None:
        """Remove a rule if it exists; checks stay on even without rules."""
        self._grants = [one for one in self._grants if one != grant]

    def clear(self) -> None:
        """Allow everything again."""
        self._grants.clear()
        self._checking = False

    def is_allowed(
        self, client_id: str, operation: AclOperation, resource: AclResourceType, name: str = CLUSTER_NAME
    ) -> bool:
        """Return whether a client may perform an operation on a resource."""
        if not self._checking:
            return True
        rules = [one for one in self._of(client_id, resource) if one.matches(name)]
        if any(one.deny and one.operation is operation for one in rules):
            return False
        enough = {operation} | (DESCRIBED_BY if operation is AclOperation.DESCRIBE else frozenset[AclOperation]())
        return any(not one.deny and one.operation in enough for one in rules)

    def may_produce_idempotently(self, client_id: str) -> bool:
        """Return whether a client may get a producer id: by IDEMPOTENT_WRITE, or by WRITE on any (future) topic."""
        if self.is_allowed(client_id, AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER):
            return True
        writes = [one for one in self._of(client_id, AclResourceType.TOPIC) if one.operation is AclOperation.WRITE]
        denied = [one for one in writes if one.deny]
        return any(not one.deny and not any(_covers(no, one) for no in denied) for one in writes)

    def _of(self, client_id: str, resource: AclResourceType) -> list[AclBinding]:
        return [one for one in self._grants if one.client_id in {ANY, client_id} and one.resource is resource]


def _covers(denial: AclBinding, grant: AclBinding) -> bool:
    """Return whether a deny rule covers everything that an allow rule allows."""
    if denial.name == ANY:
        return True
    if grant.name == ANY or (grant.prefix and not denial.prefix):
        return False
    return grant.name.startswith(denial.name) if denial.prefix else grant.name == denial.name
