"""The tables that files and batches need beside those of `tables` where servers share them; `database.migrations`
creates them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, MetaData, String, Table

metadata = MetaData()

leases = Table(
    "batch_leases",
    metadata,
    Column("batch_id", String, primary_key=True),
    Column("worker", String, nullable=False),  # a server
    Column("until", Double, nullable=False),  # by the clock of the database
)

chunks = Table(
    "file_chunks",
    metadata,
    Column("file_id", String, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),  # from 0
    Column("data", LargeBinary, nullable=False),  # all but the last have the same size
    Column("stored_at", Double, nullable=False),
    Index("file_chunks_by_age", "stored_at"),
)
