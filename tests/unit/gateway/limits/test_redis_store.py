"""What needs no Redis server; `test_redis_limiter.py` has the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidSetting
from penstock.gateway.limits.account import Account
from penstock.gateway.limits.redis_limiter import RedisLimiter
from penstock.gateway.limits.redis_store import _name

NAMES = st.text(":%{} a/é\n", max_size=4)


@given(st.lists(st.tuples(NAMES, NAMES), min_size=2, max_size=6, unique=True))
def test_no_name_of_a_tenant_or_key_names_another_account(accounts: list[tuple[str, str]]) -> None:
    names = {_name(Account(tenant, key)) for tenant, key in accounts}
    assert len(names) == len(accounts)
    assert all(name.isascii() and name.isprintable() and " " not in name for name in names)


@pytest.mark.parametrize("url", ["http://:s3cret@host", "s3cret", "redis://:s3cret@host:port"])
def test_an_invalid_url_is_a_setting_error_that_does_not_show_it(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        RedisLimiter(url)
    assert caught.value.param == "redis"
    assert "s3cret" not in str(caught.value)
