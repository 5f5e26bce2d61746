"""The tables of files, batches and lines: in a server's own SQLite file, or in the database that servers share. Columns
have the names of the records' fields."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table

VERSION = 2
UPGRADES = {1: "ALTER TABLE batches ADD COLUMN key VARCHAR NOT NULL DEFAULT ''"}  # by the version before
metadata = MetaData()
BIG = BigInteger().with_variant(Integer, "sqlite")

files = Table(
    "files",
    metadata,
    Column("place", BIG, primary_key=True, autoincrement=True),  # the order of lists
    Column("id", String, nullable=False, unique=True),
    Column("tenant", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("filename", String, nullable=False),
    Column("bytes", BIG, nullable=False),
    Column("created_at", BIG, nullable=False),
    Column("expires_at", BIG),
    # A deleted file is gone for clients; its content stays until no unfinished batch reads it.
    Column("deleted", Boolean, nullable=False, default=False),
    Index("files_of_tenant", "tenant", "place"),
    sqlite_autoincrement=True,
)

batches = Table(
    "batches",
    metadata,
    Column("place", BIG, primary_key=True, autoincrement=True),
    Column("id", String, nullable=False, unique=True),
    Column("tenant", String, nullable=False),
    Column("key", String, nullable=False, server_default=""),
    Column("endpoint", String, nullable=False),
    Column("input_file_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", BIG, nullable=False),
    Column("expires_at", BIG, nullable=False),
    Column("metadata", JSON(none_as_null=True)),
    Column("output_expires_s", BIG),
    Column("model", String),
    Column("errors", JSON, nullable=False),
    Column("total", BIG, nullable=False),
    Column("completed", BIG, nullable=False),
    Column("failed", BIG, nullable=False),
    Column("usage", JSON, nullable=False),
    Column("end", String),
    Column("output_file_id", String),
    Column("error_file_id", String),
    *(
        Column(name, BIG)
        for name in (
            "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
            "cancelled_at",
        )
    ),
    Index("batches_of_tenant", "tenant", "place"),
    Index("batches_by_status", "status"),
    sqlite_autoincrement=True,
)  # fmt: skip

lines = Table(
    "batch_lines",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("number", BIG, primary_key=True),
    Column("custom_id", String, nullable=False),
    Column("offset", BIG, nullable=False),
    Column("size", BIG, nullable=False),
    Column("model", String, nullable=False),
    Column("output", LargeBinary),  # None until the line has run
    Column("failed", Boolean),
)
