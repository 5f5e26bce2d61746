from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidSetting
from penstock.frontends import count as count_module
from penstock.frontends.count import frontend_count
from penstock.settings import load


def counted(frontends: int, **arguments: object) -> int:
    return frontend_count(load({"frontends": frontends, "device": "cpu", **arguments}, environ={}))


@pytest.mark.parametrize(
    ("gpu", "cores", "wanted"), [(False, 64, 1), (True, 1, 1), (True, 7, 1), (True, 8, 2), (True, 16, 4), (True, 64, 4)]
)
def test_0_chooses_by_device_and_cores(monkeypatch: pytest.MonkeyPatch, gpu: bool, cores: int, wanted: int) -> None:
    monkeypatch.setattr(count_module.preflight, "uses_gpu", lambda settings: gpu)
    monkeypatch.setattr(count_module.resources, "cores", lambda: cores)
    assert counted(0) == wanted
    assert counted(0, cluster="auto") == 1  # rather than an error that nobody asked for
    assert (counted(1, cluster="auto"), counted(3)) == (1, 3)


@pytest.mark.parametrize("setting", [{"cluster": "auto"}, {"max_loaded": 1}])
def test_what_several_frontends_cannot_have_is_named(setting: dict[str, object]) -> None:
    with pytest.raises(InvalidSetting, match="frontends 2") as caught:
        counted(2, **setting)
    assert caught.value.param == "frontends"
    assert next(iter(setting)) in caught.value.message


def test_models_that_come_and_go_have_one_frontend(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[[models]]\nname = "a"\nmodel = "x"\nmax_replicas = 2\n')
    with pytest.raises(InvalidSetting, match=r"frontends 2: models\[0\] \(a\): max_replicas: .* use one") as error:
        frontend_count(load({"frontends": 2}, file=file, environ={}))
    assert error.value.param == "frontends"
    assert frontend_count(load({"frontends": 0}, file=file, environ={})) == 1


def test_prefill_and_decode_pools_may_have_several(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[[models]]\nname = "a"\nmodel = "x"\nreplicas = 2\nprefill_replicas = 1\n')
    assert frontend_count(load({"frontends": 2, "device": "cpu"}, file=file, environ={})) == 2
