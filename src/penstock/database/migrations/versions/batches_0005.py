"""Files and batches that servers share."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
TIMES = (
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
)  # fmt: skip


def upgrade() -> None:
    _create_files()
    _create_batches()
    op.create_table(
        "batch_leases",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("worker", sa.String, nullable=False),
        sa.Column("until", sa.Double, nullable=False),
    )


def _create_files() -> None:
    op.create_table(
        "files",
        sa.Column("place", BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("purpose", sa.String, nullable=False),
        sa.Column("filename", sa.String, nullable=False),
        sa.Column("bytes", BIG, nullable=False),
        sa.Column("created_at", BIG, nullable=False),
        sa.Column("expires_at", BIG),
        sa.Column("deleted", sa.Boolean, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("files_of_tenant", "files", ["tenant", "place"])
    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.String, primary_key=True),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("stored_at", sa.Double, nullable=False),
    )
    op.create_index("file_chunks_by_age", "file_chunks", ["stored_at"])
    if op.get_bind().dialect.name == "postgresql":
        # Not compressed: a line is read without the rest of its chunk.
        op.execute("ALTER TABLE file_chunks ALTER COLUMN data SET STORAGE EXTERNAL")


def _create_batches() -> None:
    op.create_table(
        "batches",
        sa.Column("place", BIG, primary_key=True, autoincrement=True),
        sa.Column("id", sa.String, nullable=False, unique=True),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key", sa.String, nullable=False, server_default=""),
        sa.Column("endpoint", sa.String, nullable=False),
        sa.Column("input_file_id", sa.String, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("created_at", BIG, nullable=False),
        sa.Column("expires_at", BIG, nullable=False),
        sa.Column("metadata", sa.JSON(none_as_null=True)),
        sa.Column("output_expires_s", BIG),
        sa.Column("model", sa.String),
        sa.Column("errors", sa.JSON, nullable=False),
        sa.Column("total", BIG, nullable=False),
        sa.Column("completed", BIG, nullable=False),
        sa.Column("failed", BIG, nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("end", sa.String),
        sa.Column("output_file_id", sa.String),
        sa.Column("error_file_id", sa.String),
        *(sa.Column(name, BIG) for name in TIMES),
        sqlite_autoincrement=True,
    )
    op.create_index("batches_of_tenant", "batches", ["tenant", "place"])
    op.create_index("batches_by_status", "batches", ["status"])
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.String, primary_key=True),
        sa.Column("number", BIG, primary_key=True),
        sa.Column("custom_id", sa.String, nullable=False),
        sa.Column("offset", BIG, nullable=False),
        sa.Column("size", BIG, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("output", sa.LargeBinary),
        sa.Column("failed", sa.Boolean),
    )
