"""References compute with inf and NaN on purpose; that the runtime itself warns of nothing is tested in pure/test_api.py."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.engines import Engine, use


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True, params=list(Engine), ids=lambda engine: engine.value)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Every test of numbers runs on every engine."""
    use(request.param)
    yield request.param
    use(Engine.INTERPRETER)
