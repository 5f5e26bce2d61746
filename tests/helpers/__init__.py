"""Helpers of several test folders: tiny models, sample requests, a server process, drivers and oracles."""
