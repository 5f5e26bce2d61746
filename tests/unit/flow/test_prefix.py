from __future__ import annotations

from hashlib import blake2b

from penstock.flow import Adapter
from penstock.flow.prefix import KEY_BYTES, SECRET_BYTES, block_key, draw_secret, pack_tokens, root_key

SECRET = bytes(range(SECRET_BYTES))


def test_a_secret_is_drawn_for_each_server() -> None:
    drawn = {draw_secret() for _ in range(4)}
    assert len(drawn) == 4
    assert {len(secret) for secret in drawn} == {SECRET_BYTES}


def test_all_engines_of_a_server_have_the_same_roots() -> None:
    assert root_key(SECRET, "alice", "salt") == root_key(SECRET, "alice", "salt")
    assert root_key(SECRET, "alice", "salt") != root_key(SECRET[::-1], "alice", "salt")


def test_no_two_tenants_or_salts_share_a_root() -> None:
    """Nor do those whose names say the same one behind the other."""
    asked = [
        ("", ""),
        ("a", ""),
        ("", "a"),
        ("ab", "c"),
        ("a", "bc"),
        ("a", "b"),
        ("b", "a"),
        ("a\0", "b"),
        ("a", "\0b"),
    ]
    assert len({root_key(SECRET, *one) for one in asked}) == len(asked)


def test_no_two_adapters_share_a_root() -> None:
    """Neither by name nor by version; where the files lie does not matter."""
    pirate = Adapter("pirate", "00ff", "/adapters/pirate", 16)
    others = [None, Adapter("pirate", "00fe", pirate.path, 16), Adapter("poet", "00ff", pirate.path, 16)]
    roots = {root_key(SECRET, "alice", "salt", adapter) for adapter in (pirate, *others)}
    assert len(roots) == 4
    assert root_key(SECRET, "alice", "salt", Adapter("pirate", "00ff", "/moved", 16)) in roots


def test_keys_cannot_be_computed_without_the_secret() -> None:
    """Of the most that can be known outside: tokens, tenant and salt."""
    tokens = pack_tokens(range(16))
    known = block_key(root_key(SECRET, "alice", ""), tokens)
    guessed = [b"", b"\0" * KEY_BYTES, root_key(b"", "alice", ""), blake2b(b"", digest_size=KEY_BYTES).digest()]
    assert known not in {block_key(root, tokens) for root in guessed}
    assert len(known) == KEY_BYTES
