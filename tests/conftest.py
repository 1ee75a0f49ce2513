"""Fixtures that all tiers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

import hotblock as hb

# Random tests are the same on every run; `make fuzz` explores.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile(
    "explore", max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def rt() -> Iterator[hb.Runtime]:
    """A runtime that interprets, shared by tests that change neither parameters nor seed."""
    with hb.Runtime(compiler="off") as runtime:
        yield runtime


@pytest.fixture
def own_rt() -> Iterator[hb.Runtime]:
    """A runtime of the test's own."""
    with hb.Runtime(compiler="off") as runtime:
        yield runtime
