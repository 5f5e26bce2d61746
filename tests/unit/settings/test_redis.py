from __future__ import annotations

import pytest

from penstock.errors import InvalidSetting
from penstock.settings import load


def test_redis_goes_with_keys() -> None:
    assert load({"keys": True, "redis": "rediss://:s3cret@host/1"}, environ={}).tenants.redis
    with pytest.raises(InvalidSetting, match="goes with keys"):
        load({"redis": "redis://host"}, environ={})


def test_an_invalid_url_is_not_shown() -> None:
    with pytest.raises(InvalidSetting, match="such as redis://") as caught:
        load({"keys": True, "redis": "http://:s3cret@host"}, environ={})
    assert "s3cret" not in str(caught.value)
