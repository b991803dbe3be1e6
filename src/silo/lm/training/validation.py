"""Validation during training: the beginning of every domain, scored in windows of the training length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from silo.sources.evaluation import read_scored
from silo.text.stream import TokenStream, merged_stream
from silo.text.tokenizer import Tokenizer


def validation_streams(files: Iterable[Path], tokens: int, tokenizer: Tokenizer) -> dict[str, TokenStream]:
    """The beginning of every validation domain, as one stream each."""
    by_domain: dict[str, list[str]] = {}
    for record in read_scored(files):
        by_domain.setdefault(record.domain, []).append(record.text)
    share = tokens // max(1, len(by_domain))
    return {domain: merged_stream(_take_texts(texts, share), tokenizer) for domain, texts in sorted(by_domain.items())}


def _take_texts(texts: list[str], tokens: int) -> Iterator[str]:
    """Texts until about so many tokens are together, at four characters a token."""
    room = 4 * tokens
    for text in texts:
        if room <= 0:
            return
        yield text[:room]
        room -= len(text)


@torch.inference_mode()
def mean_losses(network: Any, validation: Mapping[str, TokenStream], length: int) -> dict[str, float]:
    """Mean loss per domain, in windows of the training length that do not overlap."""
    network.eval()
    losses: dict[str, float] = {}
    for domain, text in validation.items():
        total, count = 0.0, 0
        for start in range(0, len(text.ids) - 1, length):
            window = text.ids[start : start + length + 1].astype(np.int64)
            ids = torch.from_numpy(window).unsqueeze(0).to(network.device)
            scored = torch.from_numpy(text.scored[start + 1 : start + length + 1])
            logits = network(input_ids=ids[:, :-1], use_cache=False).logits[0].float()
            each = functional.cross_entropy(logits, ids[0, 1:], reduction="none").cpu()
            total, count = total + float(each[scored].double().sum()), count + int(scored.sum())
        losses[domain] = total / max(count, 1)
    network.train()
    return losses
