"""g2p-en: letters to phonemes by a GRU encoder and a greedy GRU decoder that stops by itself.

The decode loop is data-dependent: how often it runs is decided by what it has just said. Weights come from g2p-en.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import hotblock as hb
from hotblock.demos.packages import package_file

__all__ = ["G2P", "Cell", "Weights", "decode", "load_weights", "pronounce"]

Array = Any
_PACKAGE, _REQUIREMENT = "g2p_en", "g2p-en==2.1.0"
_LETTERS = ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz")
_SOUNDS = """
    AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2
    EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH
    UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH
"""
_PHONEMES = ("<pad>", "<unk>", "<s>", "</s>", *_SOUNDS.split())
_START, _STOP = 2, 3
_MAX_PHONEMES = 20


@dataclass(frozen=True)
class Cell:
    """Weights of a GRU cell with its embedding; matrices are (3 * hidden, in)."""

    embedding: Array
    w_ih: Array
    w_hh: Array
    b_ih: Array
    b_hh: Array


@dataclass(frozen=True)
class Weights:
    """Encoder, decoder and the layer that scores phonemes."""

    encoder: Cell
    decoder: Cell
    fc_w: Array
    fc_b: Array


def gru_cell(x: Array, h: Array, cell: Cell) -> Array:
    """One step of a GRU: x (1, in) and h (1, hidden) give the next h."""
    r_i, z_i, n_i = hb.split(x @ cell.w_ih.T + cell.b_ih, 3, axis=-1)
    r_h, z_h, n_h = hb.split(h @ cell.w_hh.T + cell.b_hh, 3, axis=-1)
    r, z = hb.sigmoid(r_i + r_h), hb.sigmoid(z_i + z_h)
    n = hb.tanh(n_i + r * n_h)
    return (1 - z) * n + z * h


@hb.function
def decode(letters: Array, weights: Weights) -> Array:
    """Phoneme numbers (int64, at most 20) of letter numbers, which end in `</s>`."""
    h = hb.zeros((1, weights.encoder.w_hh.shape[1]))
    for t in range(letters.shape[0]):
        h = gru_cell(hb.embedding(letters[t : t + 1], weights.encoder.embedding), h, weights.encoder)
    said = hb.zeros(_MAX_PHONEMES, dtype=hb.int64)
    last = _START
    count = 0
    while count < _MAX_PHONEMES:
        h = gru_cell(weights.decoder.embedding[last][None], h, weights.decoder)
        last = int(hb.argmax(h @ weights.fc_w.T + weights.fc_b))
        if last == _STOP:
            break
        said[count] = last
        count += 1
    return said[:count]


def load_weights() -> Weights:
    """The weights as NumPy arrays. Raises HotblockError when the package is missing."""
    with np.load(package_file(_PACKAGE, _REQUIREMENT, "checkpoint20.npz"), allow_pickle=False) as arrays:
        encoder, decoder = (
            Cell(*(arrays[f"{side}_{name}"] for name in ("emb", "w_ih", "w_hh", "b_ih", "b_hh")))
            for side in ("enc", "dec")
        )
        return Weights(encoder, decoder, arrays["fc_w"], arrays["fc_b"])


class G2P:
    """The model loaded into a runtime: words in, phonemes out."""

    def __init__(self, runtime: hb.Runtime) -> None:
        self._decode = runtime.load(decode)
        self._weights = load_weights()

    def __call__(self, word: str) -> list[str]:
        """The phonemes of a word."""
        return pronounce(self._decode, self._weights, word)


def letter_numbers(word: str) -> Array:
    """The letters of a word as the encoder takes them."""
    known = {letter: number for number, letter in enumerate(_LETTERS)}
    return np.asarray([*(known.get(letter, 1) for letter in word.lower()), known["</s>"]], dtype=np.int64)


def pronounce(run: Any, weights: Weights, word: str) -> list[str]:
    """The phonemes that a loaded `decode` gives for a word."""
    return [_PHONEMES[number] for number in run(letter_numbers(word), weights)]
