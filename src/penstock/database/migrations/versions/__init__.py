"""One module per revision, named by its subject and number."""
