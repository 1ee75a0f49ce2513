"""Fixtures that all tiers share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.processes import gone, of_household

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


@pytest.fixture(autouse=True)
def hotblock_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home for every test, for what it runs, too; a farm that was started in it leaves with the test."""
    home = Path(tempfile.gettempdir()) / f"hb-{next(tempfile._get_candidate_names())}"  # type: ignore[attr-defined]
    monkeypatch.setenv("HOTBLOCK_HOME", str(home))
    monkeypatch.setenv("HOTBLOCK_IDLE", "0.4")
    monkeypatch.delenv("HOTBLOCK_CACHE", raising=False)
    yield home
    if home.exists():
        assert gone(home, 20), of_household(home)
        shutil.rmtree(home)
