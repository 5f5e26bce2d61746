"""/openapi.json and the page made from it."""
