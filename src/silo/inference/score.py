"""`silo score`: log-probabilities, perplexity and bits per byte of texts, with and without stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from silo.inference.mix import Floats, mixed
from silo.inference.observe import observe
from silo.inference.predict import Predictor
from silo.progress import Advance
from silo.text.stream import TokenStream
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from silo.lm.scoring import Score


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A text with the log-probability of every token, and each component's share in it [tokens, components]."""

    text: TokenStream
    logs: Floats
    shares: Floats
    counted: NDArray[np.bool_]

    @property
    def total(self) -> Score:
        """Over all tokens that count."""
        from silo.lm.scoring import Score

        return Score(float(self.logs[self.counted].sum()), int(self.counted.sum()), self.text.bytes)

    @property
    def lm_share(self) -> float:
        """The language model's mean share of the tokens that count."""
        return float(self.shares[self.counted, 0].mean()) if self.counted.any() else 1.0

    def details(self, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
        """One object per token: text, log-probability, the LM's share, that of the neighbours and of the matches."""
        for at in range(1, len(self.logs)):
            yield {
                "position": at,
                "token": int(self.text.ids[at]),
                "text": tokenizer.decode(self.text.ids[at : at + 1]),
                "logprob": float(self.logs[at]),
                "scored": bool(self.counted[at]),
                "lm_share": float(self.shares[at, 0]),
                "store_share": float(self.shares[at, 1:].sum()),
            }


def score_text(predictor: Predictor, text: TokenStream, *, advance: Advance = lambda *_: None) -> Scored:
    """Score a stream of documents in the paper's windows; the first token of all counts nowhere."""
    counted = text.scored.copy()
    counted[:1] = False
    if len(text.ids) < 2:
        return Scored(text, np.zeros(len(text.ids)), np.ones((len(text.ids), 1)), counted)
    observed = observe(predictor, text.ids, advance=advance)
    weights = observed.weights(predictor.method, predictor.settings)
    components = observed.components(predictor.method)
    parts, total = weights * components, mixed(weights, components)
    total[0], parts[0, 0] = 1.0, 1.0
    smallest = np.finfo(np.float64).tiny
    return Scored(text, np.log(np.maximum(total, smallest)), parts / np.maximum(total, smallest)[:, None], counted)
