"""Messages on a pipe: length u32, then that many bytes."""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from hotblock_farm.errors import FarmError

__all__ = ["MAX_FRAME", "Frames", "framed", "read_frame"]

MAX_FRAME: Final = 128 << 20
_HEAD: Final = struct.Struct(">I")


def framed(data: bytes) -> bytes:
    """A message as it goes over the pipe."""
    return _HEAD.pack(len(data)) + data


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next message, None at the end of the stream. Raises FarmError for one that is cut off or too large."""
    head = stream.read(_HEAD.size)
    if not head:
        return None
    if len(head) < _HEAD.size:
        raise FarmError("a message that is cut off", reason="frame")
    (size,) = _HEAD.unpack(head)
    if size > MAX_FRAME:
        raise FarmError(f"a message of {size} bytes", reason="frame")
    data = stream.read(size)
    if len(data) < size:
        raise FarmError("a message that is cut off", reason="frame")
    return data


class Frames:
    """Gathers messages from chunks as they arrive."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The messages that are whole now. Raises FarmError for one that is too large."""
        self._data += chunk
        found = []
        while len(self._data) >= _HEAD.size:
            (size,) = _HEAD.unpack_from(self._data)
            if size > MAX_FRAME:
                raise FarmError(f"a message of {size} bytes", reason="frame")
            if len(self._data) < _HEAD.size + size:
                break
            found.append(bytes(self._data[_HEAD.size : _HEAD.size + size]))
            del self._data[: _HEAD.size + size]
        return found
