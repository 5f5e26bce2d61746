"""The table of stored responses and chat completions that servers share; `database.migrations` creates it."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Double, Index, LargeBinary, MetaData, String, Table

metadata = MetaData()

stored_responses = Table(
    "stored_responses",
    metadata,
    Column("what", String(32), primary_key=True),  # response or completion
    Column("tenant", String, primary_key=True),
    Column("id", String, primary_key=True),
    *(Column(name, LargeBinary, nullable=False) for name in ("body", "conversation", "items", "pieces")),
    Column("size", BigInteger, nullable=False),  # bytes of these four
    Column("created", Double, nullable=False),
    Column("used", Double, nullable=False),  # when it was last read
    Index("stored_responses_by_use", "what", "tenant", "used"),
    Index("stored_responses_by_age", "created"),
)
