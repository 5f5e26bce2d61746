"""/openapi.json, and the /docs page made from it. Knows no API: `http.openapi_bodies` lists their bodies."""
