"""The start of an engine: checks before it, compilation beside it, and how its parts are built."""
