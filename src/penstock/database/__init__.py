"""SQL databases: opening one and checking its schema. Tables belong to the rooms that store something, such as `batch`.

Nothing imports this package before a database is needed: SQLAlchemy takes a quarter of a second to import.
"""
