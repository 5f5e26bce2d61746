"""From tokens to what the client may see: text that is whole, and that no stop string can take back."""
