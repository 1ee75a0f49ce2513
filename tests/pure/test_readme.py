"""The example on the first page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    readme = Path(__file__).parents[2] / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), flags=re.DOTALL)
    path = tmp_path / "example.py"
    path.write_text(code, encoding="utf-8")
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    layers = [{"qkv": [matrix(256, 256) for _ in range(3)], "out": matrix(256, 256)} for _ in range(2)]
    names: dict[str, Any] = {"x": matrix(9, 256), "layers": layers, "offsets": np.array([0, 2, 9])}
    exec(compile(code, str(path), "exec"), names)
    assert names["y"].shape == (9, 256)
    assert names["steps"] == 5 or np.abs(names["y"]).max() <= 10
