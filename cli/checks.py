"""The checks of `penstock check` beside those of the settings themselves."""

import os
import resource
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ..config.bootstrap import parse_bootstrap
from ..config.model import KafkaSettings, Settings
from ..config.secret_files import file_problems
from ..runtime.clock import thread_seconds

CHECK_S: Final = 15.0
_DESCRIPTORS_PER_PEER: Final = 4
_BROKERS_ASSUMED: Final = 16


class ServerCheck(NamedTuple):
    """Result for one bootstrap server."""

    server: str
    problem: str
    """Empty: it answers."""


@dataclass(slots=True)
class CheckResult:
    """Problems that keep the daemon from starting, and warnings."""

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def host(settings: Settings) -> CheckResult:
    """Check directories, file system, descriptors and checksums, without touching files of a running daemon."""
    found = CheckResult(warnings=[f"kafka.{caution}" for caution in settings.kafka.warnings()])
    for path in (settings.data_dir, settings.runtime_dir):
        _directory(path, found)
    _filesystem(settings, found)
    _descriptors(settings, found)
    found.problems += security(settings)
    from ..producer.records.batch_builder import self_check

    try:
        self_check(thread_seconds)
    except RuntimeError as error:
        found.problems.append(str(error))
    return found


def security(settings: Settings) -> list[str]:
    """Return the problems of certificates, secrets and missing packages, as the processes will meet them."""
    from ..producer.network.tls import TlsError, make_context, tls_rules

    kafka = settings.kafka
    problems = file_problems(kafka)
    if kafka.uses_tls and not problems:
        try:
            _ = make_context(tls_rules(kafka))
        except TlsError as error:
            problems.append(str(error))
    return [f"kafka.{problem}" for problem in problems]


def _directory(path: Path, found: CheckResult) -> None:
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), None)
    if existing is None or not os.access(existing, os.W_OK | os.X_OK):
        found.problems.append(f"{path} cannot be written by uid {os.getuid()}: create it for the daemon's user")


def _filesystem(settings: Settings, found: CheckResult) -> None:
    from ..daemon.spool.directory import SpoolError, check_file_system

    place = next(parent for parent in (settings.spool_dir, *settings.spool_dir.parents) if parent.exists())
    try:
        found.warnings += check_file_system(place, allow_unsafe_filesystem=settings.spool.allow_unsafe_filesystem)
    except SpoolError as error:
        found.problems.append(str(error))


def _descriptors(settings: Settings, found: CheckResult) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _DESCRIPTORS_PER_PEER * _BROKERS_ASSUMED + settings.limits.sessions_max
    if hard != resource.RLIM_INFINITY and hard < needed:
        found.problems.append(
            f"the limit of {hard} open files is below the {needed} that limits.sessions_max asks for: raise it (LimitNOFILE=), or lower the setting"
        )


def brokers(settings: Settings) -> CheckResult:
    """Connect to every bootstrap server as the daemon would. One that answers is enough; the others get a warning.

    If a required file is missing, no broker is contacted.
    """
    if security(settings):
        return CheckResult()
    reached = check_servers(settings.kafka)
    failures = [
        f"kafka.bootstrap.servers: {problem if server in problem else f'{server}: {problem}'}"
        for server, problem in reached
        if problem
    ]
    if len(failures) < len(reached):
        return CheckResult(warnings=[*failures, *_audit_topic(settings)])
    return CheckResult(problems=[*failures, "no bootstrap server can be used: records would wait in the spool"])


def check_servers(kafka: KafkaSettings) -> list[ServerCheck]:
    """Connect to all bootstrap servers at once, for at most `CHECK_S` seconds, and send each one request: a listener
    that expects a login does not answer it."""
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse

    from .brokers import BrokerConnections

    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    found: list[ServerCheck] = []
    with closing(BrokerConnections(kafka, CHECK_S)) as connections:
        tried = [connections.connect(server, request) for server in parse_bootstrap(kafka.bootstrap_servers)]
        connections.run(lambda each: each.response is not None)
        for each in tried:
            if each.response is not None:
                understood = isinstance(each.response, MetadataResponse)
                problem = "" if understood else f"{each.server} does not answer what was asked"
            elif each.lost is None:
                state = each.connection.state.name
                problem = each.connection.last_error or f"no answer within {CHECK_S:.0f} s ({state})"
            else:
                hint = " at the first question: does the listener want a login (security.protocol = SASL_…)?"
                problem = f"{each.lost}{hint if each.lost_request else ''}"
            found.append(ServerCheck(each.server, problem))
    return found


def _audit_topic(settings: Settings) -> list[str]:
    """Return the problems of the audit topic. Data flows without it."""
    from .audit_verbs import WANTED, missing
    from .topic_admin import AdminError, TopicAdmin

    if not settings.audit.enabled:
        return []
    try:
        with closing(TopicAdmin(settings.kafka)) as admin:
            return missing(settings.audit.topic, admin.describe(settings.audit.topic, list(WANTED)))
    except AdminError as error:
        return [f"the audit topic cannot be looked at: {error}"]
