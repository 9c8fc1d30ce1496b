"""The commands of `control.sock`: `stats`, `ready`, `drain`, `reload`, `resend`, `log_level`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pydantic

from ...config import handover
from ...config.model import Settings
from ...runtime import logs
from ...runtime.clock import monotonic
from ..processes.control_client import ControlError
from .control import ControlCommand
from .lifecycle import RouterPhase
from .stats import stats

if TYPE_CHECKING:
    from .router import Router

RELOADABLE: Final = frozenset({"log_level", "limits", "timeouts.drain_ms", "spool.when_full"})
"""Settings, and whole sections, that take effect without a restart."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


class ControlCommands:
    """Each command reads or changes the router between two of its events."""

    def __init__(self, router: "Router") -> None:
        self._router = router

    def table(self) -> Mapping[str, ControlCommand]:
        return {
            "stats": self.stats,
            "ready": self.ready,
            "drain": self.drain,
            "reload": self.reload,
            "resend": self.resend,
            "log_level": self.log_level,
        }

    def stats(self, _arguments: Mapping[str, object]) -> object:
        """Return all statistics."""
        return stats(self._router, monotonic())

    def ready(self, _arguments: Mapping[str, object]) -> object:
        """Return whether frames are accepted, and the facts behind it."""
        router = self._router
        return {
            "ready": router.lifecycle.phase is RouterPhase.RUNNING,
            "phase": router.lifecycle.phase.value,
            "shards": len(router.bus.pids()),
            "shards_wanted": router.settings.shards,
            "brokers": router.metadata.connected_to is not None,
            "alarms": len(router.leases.alarms),
        }

    def drain(self, _arguments: Mapping[str, object]) -> object:
        """Start an orderly shutdown; the supervisor decides whether the router restarts."""
        self._router.stop(drain=True)
        return {"pending": self._router.pending_records}

    def resend(self, arguments: Mapping[str, object]) -> object:
        """Resend blocked `topic`, `partition` under a new producer id; records in flight may be duplicated."""
        topic, partition = arguments.get("topic"), arguments.get("partition")
        if not isinstance(topic, str) or type(partition) is not int:
            raise ControlError("resend needs topic, a text, and partition, a number")
        if not self._router.leases.resend(topic, partition, monotonic()):
            raise ControlError(f"{topic}-{partition} is not blocked: nothing was done")
        return {"resent": True}

    def log_level(self, arguments: Mapping[str, object]) -> object:
        """`level`: DEBUG, INFO, WARNING or ERROR, until the next start or reload."""
        level = arguments.get("level")
        if level not in LEVELS:
            raise ControlError(f"the level is one of {', '.join(LEVELS)}")
        logs.configure("router", level=str(level))
        return {"level": level}

    def reload(self, arguments: Mapping[str, object]) -> object:
        """Apply the reloadable settings of `path`, or of the router's settings file, and list the others.

        Applied settings are written back to the settings file, so that a restarted shard or router has them too.
        """
        router = self._router
        path = router.settings_path
        given = arguments.get("path")
        if given is not None and not isinstance(given, str):
            raise ControlError("path is text")
        try:
            wanted = handover.read(path if given is None else path.with_name(given))
        except (OSError, pydantic.ValidationError) as error:
            raise ControlError(f"the new settings cannot be read: {error}") from error
        changed = sorted(_differences(router.settings.model_dump(mode="json"), wanted.model_dump(mode="json")))
        live = [name for name in changed if _is_live(name)]
        refused = [name for name in changed if not _is_live(name)]
        router.apply_settings(_with(router.settings, wanted, live))
        return {"changed": live, "needs_restart": refused}


def _differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> set[str]:
    """Dotted names of all settings that differ; the map of topics counts as one."""
    found: set[str] = set()
    for name in old.keys() | new.keys():
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict) and not prefix and name != "topics":
            found |= _differences(before, after, f"{name}.")
        elif before != after:
            found.add(f"{prefix}{name}")
    return found


def _is_live(name: str) -> bool:
    # The segment size and the read buffers fix the largest frame.
    return name != "limits.frame_bytes_max" and (name in RELOADABLE or name.partition(".")[0] in RELOADABLE)


def _with(settings: Settings, wanted: Settings, names: list[str]) -> Settings:
    """`settings` with these names taken from `wanted`."""
    result = settings
    for name in names:
        section, _, field = name.partition(".")
        if not field:
            result = result.model_copy(update={section: getattr(wanted, section)})
        else:
            part = getattr(result, section).model_copy(update={field: getattr(getattr(wanted, section), field)})
            result = result.model_copy(update={section: part})
    return result
