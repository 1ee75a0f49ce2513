"""A cold start is one with an empty home: no farm that runs, no code that is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def fresh_home() -> Iterator[None]:
    """An empty home for what is started in it; its farm leaves soon after."""
    before = {name: os.environ.get(name) for name in ("HOTBLOCK_HOME", "HOTBLOCK_IDLE")}
    home = tempfile.mkdtemp(prefix="hb-")
    os.environ.update(HOTBLOCK_HOME=home, HOTBLOCK_IDLE="1")
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(home, ignore_errors=True)
