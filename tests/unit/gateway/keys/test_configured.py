from __future__ import annotations

from penstock.gateway.keys.configured import ConfiguredKeys, tenant_of_key
from penstock.gateway.keys.identity import ALL_SCOPES, Scope


def test_admin_keys_have_all_scopes_and_others_do_not_administrate() -> None:
    keys = ConfiguredKeys(["user", "boss"], ["boss"])
    user, boss = keys.identify(b"user"), keys.identify(b"boss")
    assert user is not None
    assert boss is not None
    assert user.scopes == {Scope.INFERENCE, Scope.OBSERVE}
    assert boss.scopes == ALL_SCOPES
    assert user.tenant != boss.tenant


def test_other_keys_are_unknown() -> None:
    keys = ConfiguredKeys(["user"])
    assert [keys.identify(key) for key in (b"", b"use", b"user ", b"\x00", b"\xff" * 9)] == [None] * 5


def test_the_key_is_not_in_the_tenant_name() -> None:
    assert tenant_of_key(b"one") != tenant_of_key(b"two")
    assert tenant_of_key(b"sk-secret") == tenant_of_key(b"sk-secret")
    assert "secret" not in tenant_of_key(b"sk-secret")
