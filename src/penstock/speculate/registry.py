"""Proposers by the name that the setting `speculate` gives them. A module is imported when it is chosen."""

from __future__ import annotations

import importlib
from typing import cast

from penstock.errors import InvalidSetting
from penstock.speculate.proposer import DraftSource
from penstock.store.files import ModelFiles

# Functions `(argument, ModelFiles of the target) -> DraftSource`. The argument of "draft:MODEL" is MODEL.
SOURCES = {
    "lookup": "penstock.speculate.lookup:prepare",
    "draft": "penstock.speculate.draft_model:prepare",
    "eagle": "penstock.speculate.chain_proposer:prepare_eagle",
    "mtp": "penstock.speculate.chain_proposer:prepare_mtp",
    "medusa": "penstock.speculate.medusa_proposer:prepare",
}
LAYERED = ("draft", "eagle", "mtp")  # keep keys and values under the target's block ids


def prepare(speculate: str, target: ModelFiles) -> DraftSource:
    """Raises if the proposer cannot be read, or cannot draft for this target."""
    name, _, argument = speculate.partition(":")
    if name in LAYERED and all(group.window for group in target.spec.cache_groups):
        raise InvalidSetting(
            f"speculate: {name} needs a target with layers of full attention; all those of {target.name} have a window",
            param="speculate",
        )
    module, _, function = SOURCES[name].partition(":")
    return cast(DraftSource, getattr(importlib.import_module(module), function)(argument, target))
