"""MiniLM in PyTorch, padded, for the demo's closing table; only if PyTorch happens to be installed."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from hotblock.demos.minilm import load_weights

__all__ = ["torch_embedder"]

_HEADS, _EPS = 12, 1e-12


def torch_embedder() -> Callable[[Sequence[Sequence[int]]], Any] | None:
    """A function of token ids of texts that gives unit vectors, or None without PyTorch."""
    if find_spec("torch") is None:
        return None
    import torch
    from torch.nn import functional as F  # noqa: N812

    def tensor(array: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(array))

    model = load_weights()
    layers = [
        {name: (tensor(w.T if w.ndim == 2 else w), tensor(b)) for name, (w, b) in vars(layer).items()}
        for layer in model.layers
    ]
    words, positions, kind = tensor(model.words), tensor(model.positions), tensor(model.kind)
    norm = tuple(map(tensor, model.norm))

    @torch.no_grad()
    def embed(texts: Sequence[Sequence[int]]) -> Any:
        longest = max(map(len, texts))
        ids = torch.zeros(len(texts), longest, dtype=torch.int64)
        real = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            ids[row, : len(text)], real[row, : len(text)] = torch.tensor(text), True
        x = F.layer_norm(F.embedding(ids, words) + positions[:longest] + kind, (384,), *norm, _EPS)
        for layer in layers:
            q, k, v = (
                F.linear(x, *layer[name]).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
            x = F.layer_norm(
                x + F.linear(attended.transpose(1, 2).flatten(2), *layer["output"]), (384,), *layer["output_norm"], _EPS
            )
            inner = F.linear(F.gelu(F.linear(x, *layer["up"])), *layer["down"])
            x = F.layer_norm(x + inner, (384,), *layer["down_norm"], _EPS)
        pooled = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1).numpy()

    return embed
