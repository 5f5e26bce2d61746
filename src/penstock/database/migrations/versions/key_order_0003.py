"""An index in the order of pages of keys; it serves all that the one on tenants did."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("keys_in_order", "keys", ["tenant", "created", "id"])
    op.drop_index("keys_of_tenant", "keys")
