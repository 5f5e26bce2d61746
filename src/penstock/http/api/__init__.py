"""The APIs that clients speak, a package each, and above them what their schemas and answers share."""
