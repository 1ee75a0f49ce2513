"""What the engines that take only dense tensors share: W1 as one padded batch.

Each new length costs them a compile or a plan, so lengths are rounded up a little, which is to their favour.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np
import workloads as w
from worker import timed

_STEP = 4


def request(number):
    """A request as (BATCH, length, DIM), which keys each query sees as (BATCH, 1, length, length), and the true lengths."""
    tokens, offsets = w.decoder_request(number)
    dense, lengths = w.padded(tokens, offsets)
    length = -(-dense.shape[1] // _STEP) * _STEP
    dense = np.pad(dense, ((0, 0), (0, length - dense.shape[1]), (0, 0)))
    place = np.arange(length)
    seen = (place[:, None] >= place)[None] & (place < lengths[:, None])[:, None, :] | np.eye(length, dtype=bool)
    return dense, seen[:, None], lengths


def variants(engine):
    """W1 warm and cold. `engine()` gives a `forward(x, seen)` that has met no length yet, which gives a NumPy array."""
    return {"w1 padded": _warm(engine), "w1 cold padded": _cold(engine)}


def _checked(y, lengths):
    return w.checksum(np.concatenate([y[i, :n] for i, n in enumerate(lengths)]))


def _warm(engine):
    def make():
        forward = engine()
        met = set()
        for number in range(200):
            x, seen, _ = request(number)
            if x.shape[1] not in met:
                met.add(x.shape[1])
                forward(x, seen)

        def run(number):
            x, seen, lengths = request(number)
            seconds, y = timed(lambda: forward(x, seen))
            return [seconds, *_checked(y, lengths)]

        return run

    return make


def _cold(engine):
    """The whole stream from nothing, compiles included."""

    def make():
        def run(number):
            def stream():
                forward = engine()
                for number in range(w.STREAM):
                    x, seen, lengths = request(number)
                    y = forward(x, seen)
                return y, lengths

            seconds, (y, lengths) = timed(stream)
            return [seconds, *_checked(y, lengths)]

        return run

    return make
