"""The old name of what pickles call when they are loaded."""

from chimera_pipeline._pickled import lowered

__all__ = ["lowered"]
