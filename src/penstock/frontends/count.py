"""How many frontend processes a server has, and what it cannot have with several."""

from __future__ import annotations

import sys

from penstock.errors import InvalidSetting
from penstock.settings import Settings
from penstock.settings.models import entry_label
from penstock.startup import preflight
from penstock.system import resources

CORES_PER_FRONTEND, MOST = 4, 4  # that 0 chooses: the engine, the control process and clients need cores, too


def frontend_count(settings: Settings) -> int:
    """Raises InvalidSetting if the settings do not go with several."""
    count = settings.serve.frontends
    if count == 0:
        return _best_count(settings) if _obstacle(settings) is None else 1
    if count > 1 and (obstacle := _obstacle(settings)) is not None:
        raise InvalidSetting(f"frontends {count}: {obstacle}", param="frontends")
    return count


def _best_count(settings: Settings) -> int:
    """On a CPU the engine takes all cores and is the bound: one."""
    if not preflight.uses_gpu(settings):
        return 1
    return min(max(resources.cores() // CORES_PER_FRONTEND, 1), MOST)


def _obstacle(settings: Settings) -> str | None:
    if sys.platform != "linux":
        return "several processes share an address on Linux only"
    if settings.serve.cluster is not None:
        return "the engines of a cluster have one frontend: use one, or leave cluster out"
    if settings.serve.max_loaded is not None:
        return "max_loaded swaps models, which several frontends cannot do: use one frontend, or leave it out"
    for number, entry in enumerate(settings.models):
        changing = {
            "load": entry.load == "demand",
            "keep_alive": entry.keep_alive is not None,
            "max_replicas": entry.max_replicas is not None,
        }
        if (name := next((name for name, asked in changing.items() if asked), None)) is not None:
            return (
                f"{entry_label(number, entry.name)}: {name}: with several frontends all models and replicas are loaded "
                "at the start and stay: use one frontend, or leave it out"
            )
    return None
