"""SQL databases: opening one, its transactions, and its schema. Tables belong to the packages that store something,
such as `batch`, `gateway.keys`, `gateway.ledger` and `http`.

database     a SQLite file or a PostgreSQL database by its URL, with transactions that read or write
threads      the threads in which servers call it
migrate      brings all tables up to date, except those of a server's own files and batches
migrations/  the revisions, as alembic runs them
sqlite       SQLite files, and the schema of files and batches, which belongs to one server

Nothing imports this package before a database is needed: SQLAlchemy takes a quarter of a second to import.
"""
