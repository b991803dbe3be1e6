"""Reads a text token by token: what was read before is kept as a KV cache and never computed twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.lm.manifest import Key
from silo.lm.model import LanguageModel


@dataclass(frozen=True, slots=True, eq=False)
class DecoderOutput:
    """After a text: the probability of every token, and the key of this place."""

    probabilities: NDArray[np.float64]
    key: NDArray[np.float32]

    @property
    def peak(self) -> float:
        """The probability of the likeliest token."""
        return float(self.probabilities.max())


class Decoder:
    """One text at a time. `read` takes the whole text; only what differs from the text before is computed."""

    def __init__(self, model: LanguageModel, key: Key = "final") -> None:
        self._model = model
        self._key = key
        self._cache: Any = None
        self._ids: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._last: DecoderOutput | None = None

    @torch.inference_mode()
    def read(self, ids: NDArray[Any]) -> DecoderOutput:
        """The prediction after a text of at least one token."""
        text = np.asarray(ids, dtype=np.int64)
        if not len(text):
            raise ValueError("a text without tokens has no next one")
        if self._last is not None and np.array_equal(text, self._ids):
            return self._last
        reused = min(_shared_prefix(self._ids, text), len(text) - 1)
        self._rewind(reused)
        rest = torch.from_numpy(text[reused:]).unsqueeze(0).to(self._model.device)
        output = self._model.step(rest, self._cache, key=self._key)
        self._ids = text
        logits, keys = (tensor[0].float().cpu().numpy() for tensor in (output.logits, output.keys))
        self._last = DecoderOutput(_softmax(logits), keys)
        return self._last

    def _rewind(self, length: int) -> None:
        """Keep the first tokens of what was read."""
        if self._cache is None or not length:
            from transformers import DynamicCache  # loaded with the network; here it costs no start anything

            self._cache = DynamicCache(config=self._model.network.config)
        elif length < len(self._ids):
            self._cache.crop(length - len(self._ids))


def _shared_prefix(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """How many first tokens two texts share."""
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    probabilities: NDArray[np.float64] = weights / weights.sum()
    return probabilities
