"""Where a request goes: the engines behind this frontend."""
