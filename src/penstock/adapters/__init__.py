"""Adapters that an engine holds in memory: which ones, how many bytes, who uses them. Loaded in the background.

The scheduler asks what is resident, has adapters loaded and pins those in use; the backend takes their weights. On a
CPU there is one tier: what is loaded lies in the memory that the kernels read. A backend with memory of its own has its
tier behind the loader, which gives what its steps read.
"""

from penstock.adapters.cache import AdapterCache
from penstock.adapters.loader import AdapterLoader

__all__ = ["AdapterCache", "AdapterLoader"]
