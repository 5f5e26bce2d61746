"""Runs the revisions, for alembic: `database.migrate` sets the connection."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
