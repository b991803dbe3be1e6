"""Keys of a document: the state after each of its prefixes, computed from that document alone.

A document is encoded from its own beginning in windows of one fixed length padded at the right, so that its keys do not
depend on other documents, on the batch they share, or on the number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from silo.corpus.tokens import Ids
from silo.lm.model import LanguageModel
from silo.lm.scoring import Windows, window_starts

Keys = NDArray[np.float32]


def document_keys(model: LanguageModel, ids: Ids, windows: Windows, *, batch: int = 4) -> tuple[Keys, Ids]:
    """For every token but the first: the state after the tokens before it (the key), and the token (the value)."""
    keys = np.empty((max(len(ids) - 1, 0), model.hidden_size), dtype=np.float32)
    places = list(window_starts(len(ids), windows))
    for first in range(0, len(places), batch):
        group = places[first : first + batch]
        hidden = _hidden(model, ids, [start for start, _ in group], windows.length)
        for at, (start, scored) in enumerate(group):
            begin, end = max(scored, 1), min(start + windows.length, len(ids))
            keys[begin - 1 : end - 1] = hidden[at, begin - start - 1 : end - start - 1]
    return keys, ids[1:]


@torch.inference_mode()
def _hidden(model: LanguageModel, ids: Ids, starts: list[int], length: int) -> Keys:
    rows = torch.zeros((len(starts), length), dtype=torch.long)
    for at, start in enumerate(starts):
        piece = torch.from_numpy(ids[start : start + length].astype(np.int64))
        rows[at, : len(piece)] = piece
    states: Keys = model.forward(rows).hidden.float().numpy()
    return states
