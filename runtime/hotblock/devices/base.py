"""What the VM needs of a place where arrays live."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Protocol

__all__ = ["Device"]


class Device(Protocol):
    """A place for arrays and the array module that computes there. Stateless, safe to share between threads."""

    @property
    def name(self) -> str: ...

    @property
    def xp(self) -> ModuleType:
        """NumPy, or a module with its interface."""
        ...

    def is_array(self, value: object) -> bool:
        """Whether a value is taken as a tensor."""
        ...

    def to_array(self, value: Any) -> Any:
        """A value as this device's array, not copied when it need not be. Raises DTypeError for what it cannot take."""
        ...
