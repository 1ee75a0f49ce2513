"""What programs of one runtime share: parameters and the random stream. Both are safe for threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

from hotblock.devices import Device
from hotblock.errors import DTypeError, NotFoundError
from hotblock.semantics import NUMPY_DTYPES
from hotblock.shapes import ScalarKind
from hotblock.vm.values import LayoutTable, TensorValue

__all__ = ["Constant", "Parameters", "RandomStream"]

Array = Any


class Constant:
    """An opaque handle of a tensor that will not change. Accepted wherever an array is; writing to it raises."""

    __slots__ = ("value",)

    def __init__(self, value: TensorValue) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"<hb.Constant {self.value.layout!r}>"

    def __dlpack__(self, **options: Any) -> Any:
        """For whoever takes arrays, `fn.lower` among them. The memory is read-only."""
        return self.value.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.value.array.__dlpack_device__()
        return device


class Parameters(MutableMapping[str, Array]):
    """Named tensors that programs read with `load.param` and replace with `store.param`.

    Setting copies; reading gives a read-only array, which later stores do not change.
    """

    def __init__(self, device: Device, layouts: LayoutTable) -> None:
        self._device = device
        self._layouts = layouts
        self._values: dict[str, TensorValue] = {}
        self._lock = threading.Lock()

    def load(self, name: str) -> TensorValue:
        """The current value. Raises NotFoundError."""
        value = self._values.get(name)
        if value is None:
            raise NotFoundError(f"no parameter {name!r}; set rt.params[{name!r}] = array")
        return value

    def freeze(self, value: Array) -> TensorValue:
        """A read-only copy in C order; a number as a rank-0 tensor of its default dtype. Raises DTypeError."""
        if type(value) in (bool, int, float):
            dtype = NUMPY_DTYPES[ScalarKind.of(value).default_dtype]
            copy = self._device.xp.asarray(value, dtype=dtype)
        elif self._device.is_array(value):
            copy = self._device.xp.array(self._device.to_array(value), order="C")
        else:
            raise DTypeError(f"a {type(value).__name__}; pass an array or a number", reason="argument")
        copy.flags.writeable = False
        view = copy.view()  # of a read-only array: its flag cannot be set back
        return TensorValue(view, self._layouts.constant(view))

    def __getitem__(self, name: str) -> Array:
        return self.load(name).array

    def __setitem__(self, name: str, value: Array) -> None:
        if not isinstance(name, str):
            raise DTypeError(f"a parameter's name is a string, not {name!r}")
        frozen = value.value if isinstance(value, Constant) else self.freeze(value)
        with self._lock:
            self._values[name] = frozen

    def __delitem__(self, name: str) -> None:
        with self._lock:
            self.load(name)
            del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)


class RandomStream:
    """The seed and the number of the next draw. Seeding starts the stream anew."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._seed = seed
        self._draws = 0

    def seed(self, seed: int) -> None:
        with self._lock:
            self._seed, self._draws = seed, 0

    def current_seed(self) -> int:
        return self._seed

    def draw(self) -> int:
        """The next draw number: 0, 1, 2, ..."""
        with self._lock:
            self._draws += 1
            return self._draws - 1
