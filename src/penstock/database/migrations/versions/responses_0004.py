"""Stored responses and chat completions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "stored_responses",
        sa.Column("what", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("id", sa.String, primary_key=True),
        *(sa.Column(name, sa.LargeBinary, nullable=False) for name in ("body", "conversation", "items", "pieces")),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("used", sa.Double, nullable=False),
    )
    op.create_index("stored_responses_by_use", "stored_responses", ["what", "tenant", "used"])
    op.create_index("stored_responses_by_age", "stored_responses", ["created"])
