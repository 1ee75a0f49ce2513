"""When a segment is hot. Pure numbers, no clock.

A segment is hot after `threshold` entries in all; from then on a shape class asks for a compile at its second entry, so that
a class met once costs nothing. (With a threshold of 8 and one class that is its 8th entry.)
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEFAULT_THRESHOLD", "ENTRIES_OF_A_CLASS", "INFERENCE_THRESHOLD", "is_hot"]

DEFAULT_THRESHOLD: Final = 8
INFERENCE_THRESHOLD: Final = 3

ENTRIES_OF_A_CLASS: Final = 2


def is_hot(entries: int, class_entries: int, threshold: int) -> bool:
    """Whether a class with so many entries, of a segment with so many, is compiled."""
    return entries >= threshold and class_entries >= min(ENTRIES_OF_A_CLASS, threshold)
