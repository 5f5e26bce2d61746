"""The tables of keys, tenants and the audit log. Columns have the names of the records' fields; `database.migrations`
creates them."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

from penstock.gateway.keys.identity import Limits

metadata = MetaData()


def _limits() -> list[Column[int]]:
    return [Column(name, BigInteger) for name in Limits.__struct_fields__]


tenants = Table(
    "tenants",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("created", Double, nullable=False),
    Column("weight", Double, nullable=False),
    *_limits(),
    Column("changed", BigInteger, nullable=False),  # the value of `key_changes.number` at its last change
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part
    Column("tenant", String(64), ForeignKey("tenants.name"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("hash", LargeBinary(32), nullable=False),  # SHA-256 of the whole key
    Column("previous_hash", LargeBinary(32)),  # of the secret before the last rotation,
    Column("previous_until", Double),  # which is valid until then
    Column("scopes", JSON, nullable=False),
    Column("models", JSON(none_as_null=True)),
    Column("tier", String(32), nullable=False),
    *_limits(),
    Column("default_max_tokens", BigInteger),
    Column("max_tokens", BigInteger),
    Column("created", Double, nullable=False),
    Column("expires", Double),
    Column("revoked", Double),
    Column("rotated", Double),
    Column("changed", BigInteger, nullable=False),
    Index("keys_in_order", "tenant", "created", "id"),  # of pages
    Index("keys_changed", "changed"),
)

# One row: the number of changes of keys and tenants. Servers poll it to see what others have changed.
key_changes = Table("key_changes", metadata, Column("number", BigInteger, primary_key=True, autoincrement=False))

audit = Table(
    "audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("time", Double, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(256), nullable=False),
    Column("details", JSON, nullable=False),
    Column("outcome", String(64), nullable=False),
    Column("request_id", String(128)),
    sqlite_autoincrement=True,
)
