"""The debug routes: what happens inside a running server. docs/OBSERVE.md describes them."""
