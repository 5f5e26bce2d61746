"""From bytes to typed bodies: JSON, schemas, query strings, and the texts of their errors. Knows no API and no
route."""
