from __future__ import annotations

import sys

import pytest

from penstock.errors import InvalidSetting
from penstock.system import extras


class Missing:
    """Finds no torch."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'")


@pytest.fixture(params=["none", "finder"])
def without_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "none":
        monkeypatch.setitem(sys.modules, "torch", None)  # type: ignore[arg-type]
    else:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])


def test_installed() -> None:
    assert extras.has_torch()
    extras.require_torch("device cuda", "device")


@pytest.mark.usefixtures("without_torch")
def test_missing() -> None:
    command = r"python\S* -m pip install 'penstock\[torch\]'"
    with pytest.raises(InvalidSetting, match=f"device cuda needs torch, .*{command}") as caught:
        extras.require_torch("device cuda", "device")
    assert caught.value.param == "device"
