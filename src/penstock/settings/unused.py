"""A setting that has no effect without another one is an error where that one is missing.

Only values that differ from the default count as given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import InvalidSetting
from penstock.settings.models import ModelEntry
from penstock.settings.sections import EngineSettings, ScheduleSettings, Section
from penstock.settings.server import ObserveSettings, TenantSettings

if TYPE_CHECKING:
    from penstock.settings import Settings


class Need(NamedTuple):
    """What a setting needs for an effect. `met` takes the settings, or an entry of [[models]]."""

    section: str
    name: str
    met: Callable[[Any], bool]
    why: str

    def value(self, of: Any) -> Any:
        return getattr(getattr(of, self.section), self.name)

    def is_given(self, of: Any) -> bool:
        return bool(_plain(self.value(of)) != _plain(getattr(_DEFAULTS[self.section], self.name)))

    def error(self) -> InvalidSetting:
        return InvalidSetting(f"{self.name}: {self.why}", param=self.name)


def _plain(value: Any) -> Any:
    """A list of numbers in a text may have spaces."""
    return value.replace(" ", "") if isinstance(value, str) else value


_DEFAULTS: dict[str, Section] = {
    "schedule": ScheduleSettings(),
    "engine": EngineSettings(),
    "tenants": TenantSettings(),
    "observe": ObserveSettings(),
}
_SLOS = tuple(
    name
    for name in ObserveSettings.__struct_fields__
    if name.startswith("slo_") and name not in ("slo_window_s", "slo_webhook")
)
# Without events slo_ttft_p95 is still what autoscaling aims at.
_RECORDED = ("keep_texts", "otel_endpoint", *(name for name in _SLOS if name != "slo_ttft_p95"), "slo_webhook")

_OF_A_MODEL = (
    Need(
        "engine",
        "speculate_audit",
        lambda of: of.engine.speculate != "off",
        "there are no drafts to audit: set speculate, or leave it out",
    ),
    Need(
        "schedule",
        "ttft_targets_s",
        lambda of: of.schedule.policy == "deadline",
        "only the deadline policy aims at them: set policy to deadline, or leave them out",
    ),
    Need(
        "schedule",
        "ageing_s",
        lambda of: of.schedule.policy in ("fair", "priority"),
        "requests age under the policies fair and priority alone: set one of them, or leave it out",
    ),
)
_OF_A_SERVER = (
    *(
        Need("observe", name, lambda of: of.observe.events, "events are off: leave one of the two out")
        for name in _RECORDED
    ),
    Need(
        "observe",
        "slo_webhook",
        lambda of: any(getattr(of.observe, name) is not None for name in _SLOS),
        f"there is no objective that could raise an alert: set one of {', '.join(_SLOS)}",
    ),
    Need(
        "tenants",
        "limits_unavailable",
        lambda of: of.needs_database,
        "there are neither limits nor a record of usage: set keys or ledger, or leave it out",
    ),
    Need(
        "tenants",
        "revoked_streams",
        lambda of: of.tenants.keys,
        "only keys of the database are revoked or expire: set keys, or leave it out",
    ),
)


def check_used(settings: Settings) -> None:
    """Of the sections that all models share: one model must make use of a setting. Raises InvalidSetting."""
    for need in _OF_A_MODEL:
        if need.is_given(settings) and not any(map(need.met, settings.models or (settings,))):
            raise need.error()


def check_own_used(entry: ModelEntry, settings: Settings) -> None:
    """What an entry of [[models]] sets itself, it must make use of. Raises InvalidSetting."""
    for need in _OF_A_MODEL:
        own = need.value(entry) != need.value(settings)
        if own and need.is_given(entry) and not need.met(entry):
            raise need.error()


def check_used_by_server(settings: Settings) -> None:
    """Of a server alone: other commands take the same file and environment. Raises InvalidSetting."""
    for need in _OF_A_SERVER:
        if need.is_given(settings) and not need.met(settings):
            raise need.error()
    if settings.tenants.database is not None and not (settings.needs_database or settings.shares_stores):
        raise InvalidSetting(
            "database: the server would record nothing there: set keys or ledger, or leave it out", param="database"
        )
