"""The table of usage records. Columns have the names of the record's fields, beside the day, which queries group by."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Double, Index, Integer, MetaData, String, Table

metadata = MetaData()

usage = Table(
    "usage_records",
    metadata,
    Column("request", String, primary_key=True),  # a record that is written twice is there once
    Column("t", Double, nullable=False),
    Column("day", String(10), nullable=False),  # UTC, such as 2026-11-16
    Column("tenant", String, nullable=False),
    Column("key", String, nullable=False),
    Column("model", String, nullable=False),
    Column("replica", Integer, nullable=False),
    Column("input", BigInteger, nullable=False),
    Column("cached", BigInteger, nullable=False),
    Column("output", BigInteger, nullable=False),
    Column("drafted", BigInteger, nullable=False),
    Column("latency_s", Double, nullable=False),
    Column("ttft_s", Double),
    Column("microusd", BigInteger, nullable=False),
    Column("saved_microusd", BigInteger, nullable=False),
    Column("finish", String, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Index("usage_records_by_time", "t"),
    Index("usage_records_of_tenant", "tenant", "t"),
)
