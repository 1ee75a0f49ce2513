"""The text programs that every engine runs: a function called test_* returns true, one called fail_* raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engines import engine_runtime, warmed

import hotblock as hb
from hotblock.isa import parse

CASES = [
    (path, function.name)
    for path in sorted((Path(__file__).parents[1] / "programs").glob("*.hbasm"))
    for function in parse(path.read_text()).functions
    if function.name.startswith(("test_", "fail_"))
]


@pytest.mark.parametrize(("path", "name"), CASES, ids=[f"{path.stem}:{name}" for path, name in CASES])
def test_program(path: Path, name: str) -> None:
    try:
        loaded = engine_runtime().load(path)
    except (hb.ShapeError, hb.DTypeError) as error:
        pytest.fail(f"refused at load: {error}")
    if name.startswith("test_"):
        assert warmed(loaded[name]) is True
    else:
        with pytest.raises(hb.HotblockError) as caught:
            warmed(loaded[name])
        assert caught.value.location is not None
