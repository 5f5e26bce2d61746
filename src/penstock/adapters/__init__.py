"""Adapters that an engine holds in memory: which ones, how many bytes, who uses them. Loaded in the background.

The scheduler asks which adapters are resident, requests loads and pins adapters in use; the backend takes their
weights. On a CPU there is one tier: kernels read adapters where they were loaded. A backend with its own memory hides a
second tier behind the loader, which returns what its steps read.
"""

from penstock.adapters.cache import AdapterCache
from penstock.adapters.loader import AdapterLoader

__all__ = ["AdapterCache", "AdapterLoader"]
