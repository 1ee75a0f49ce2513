"""References compute with inf and NaN on purpose; that the runtime itself warns of nothing is tested in pure/test_api.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
