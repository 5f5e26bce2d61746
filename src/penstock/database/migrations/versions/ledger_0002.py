"""Usage records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "usage_records",
        sa.Column("request", sa.String, primary_key=True),
        sa.Column("t", sa.Double, nullable=False),
        sa.Column("day", sa.String(10), nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("replica", sa.Integer, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("input", "cached", "output", "drafted")),
        sa.Column("latency_s", sa.Double, nullable=False),
        sa.Column("ttft_s", sa.Double),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("microusd", "saved_microusd")),
        sa.Column("finish", sa.String, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
    )
    op.create_index("usage_records_by_time", "usage_records", ["t"])
    op.create_index("usage_records_of_tenant", "usage_records", ["tenant", "t"])
