"""From bytes to typed bodies: JSON, schemas, query strings, and the texts of their errors."""
