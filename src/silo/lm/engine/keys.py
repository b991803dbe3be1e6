"""The decode engine as what documents are encoded with: without torch, and with the bits that generation has."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.engine import Engine, multiply
from silo.lm.manifest import Key
from silo.placement import ENGINE
from silo.text.tokenizer import Ids, Tokenizer

Keys = NDArray[np.float32]
Item = TypeVar("Item")
Made = TypeVar("Made")


class EngineNetwork:
    """A model that the engine computes, as `DocumentEncoder` wants it."""

    mark = ENGINE
    batch_tokens = 1024
    """A window at a time: the engine's pace does not grow with more, and it keeps what it read until it is done."""

    def __init__(self, opened: DecodingModel, engine: Engine) -> None:
        self.opened = opened
        self._engine = engine
        self._here = threading.local()

    @property
    def fingerprint(self) -> str:
        """Names the function this model computes."""
        return self.opened.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        return self.opened.tokenizer

    @property
    def context(self) -> int:
        """The longest input the network was made for."""
        return self.opened.context

    @property
    def hidden_size(self) -> int:
        """Numbers in a key."""
        return self._engine.shape.width

    def window_keys(self, windows: Sequence[Ids], key: Key) -> list[Keys]:
        """The keys of all places of some windows; nothing is padded, since no sum depends on what is beside it."""
        keys = self._engine.keys(windows, key, threads=getattr(self._here, "threads", 0))
        return np.split(keys, np.cumsum([len(window) for window in windows])[:-1])

    def multiply(self, left: Keys, right: Keys) -> Keys:
        """The matrix product, on one core."""
        return multiply(left, right)

    def map_on_cores(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """The results of all items, in their order: each core takes whole ones."""
        if len(items) == 1 or self._engine.threads == 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(self._engine.threads, initializer=self._take_one_core) as pool:
            return list(pool.map(work, items))

    def _take_one_core(self) -> None:
        self._here.threads = 1

    def choose_key(self) -> Key:
        """The better kind, which every network of the engine offers."""
        return "ffn"

    def require_finite(self) -> None:
        """Refuse a network whose keys are no numbers; weights that are none were refused when it was opened."""
        tokens = np.arange(min(self.context, 64)) % self.tokenizer.vocabulary
        if not all(np.isfinite(keys).all() for keys in self._engine.keys([tokens], "final")):
            hint = "train or import the model again: its training may have diverged"
            raise SiloError("not-a-model", f"{self.opened.root} has keys that are not finite", hint)
