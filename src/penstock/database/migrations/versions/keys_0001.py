"""Keys, tenants and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _limits() -> list[sa.Column[int]]:
    names = (
        "requests_per_minute", "tokens_per_minute", "concurrent_requests", "microusd_per_day", "microusd_per_month",
    )  # fmt: skip
    return [sa.Column(name, sa.BigInteger) for name in names]


def upgrade() -> None:
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("weight", sa.Double, nullable=False),
        *_limits(),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(64), sa.ForeignKey("tenants.name"), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.Column("previous_hash", sa.LargeBinary(32)),
        sa.Column("previous_until", sa.Double),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True)),
        sa.Column("tier", sa.String(32), nullable=False),
        *_limits(),
        sa.Column("default_max_tokens", sa.BigInteger),
        sa.Column("max_tokens", sa.BigInteger),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double),
        sa.Column("revoked", sa.Double),
        sa.Column("rotated", sa.Double),
        sa.Column("changed", sa.BigInteger, nullable=False),
    )
    op.create_index("keys_of_tenant", "keys", ["tenant"])
    op.create_index("keys_changed", "keys", ["changed"])
    op.create_table("key_changes", sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False))
    op.execute("INSERT INTO key_changes (number) VALUES (0)")
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("time", sa.Double, nullable=False),
        sa.Column("actor", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("target", sa.String(256), nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("outcome", sa.String(64), nullable=False),
        sa.Column("request_id", sa.String(128)),
        sqlite_autoincrement=True,
    )
