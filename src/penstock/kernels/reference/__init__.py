"""The operations in plain torch: the references that every kernel is tested against."""
