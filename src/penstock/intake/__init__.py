"""The HTTP edge: requests are parsed and checked here, once, and answers take the form clients know."""
