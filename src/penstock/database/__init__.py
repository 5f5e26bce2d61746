"""SQL databases: opening one, its transactions, and its schema. Tables belong to the rooms that store something, such
as `batch`, `gateway.keys` and `gateway.ledger`.

database     a SQLite file or a PostgreSQL database by its URL, with transactions that read or write
migrate      brings the tables of `gateway.keys` and `gateway.ledger` up to date
migrations/  the revisions, as alembic runs them
sqlite       SQLite files, and the schema of files and batches, which belongs to one server

Nothing imports this package before a database is needed: SQLAlchemy takes a quarter of a second to import.
"""
