"""The operations in plain torch: what every kernel is tested against."""
