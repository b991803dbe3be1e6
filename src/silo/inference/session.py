"""`silo.open`: a model and stores, and on them generate, answer and score, with plain values as arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from silo.inference.answer import Answer
from silo.inference.context import ContextProvider
from silo.inference.generate import GenerateOptions, Sampling, Step, generate
from silo.inference.guard import Guard
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import Scored, score_text
from silo.inference.settings import Settings, load_settings
from silo.lm.model import LanguageModel
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.usage import Share
from silo.text.stream import merged_stream


class Session:
    """What a predictor can be asked for. Stores are read as they are at each call, and at each token of a text."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
        stop: Iterable[str] = (),
        guard: int | None = None,
        neighbours: int = 0,
    ) -> Iterator[Step]:
        """The steps of a continuation, one by one; wrong values are refused before the first."""
        sampling = Sampling(temperature, top_k, top_p, seed)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        options = GenerateOptions(max_tokens, sampling, stops, None if guard is None else Guard(guard), neighbours)
        return generate(self.predictor, prompt, options)

    def answer(self, prompt: str, *, ledger: bool = False, **options: Any) -> Answer:
        """A whole continuation with its credits and notices; options as for `generate`."""
        return self.collect(prompt, list(self.generate(prompt, **options)), ledger=ledger)

    def collect(self, prompt: str, steps: Sequence[Step], *, ledger: bool = False) -> Answer:
        """The answer that finished steps make; with `ledger` the stores note it."""
        answer = Answer.of(self.predictor.stores, self.predictor.policy, prompt, steps)
        if ledger:
            note_shares(self.predictor.stores, answer)
        return answer

    def score(self, texts: str | Iterable[str]) -> Scored:
        """Score documents as one stream, as `silo score` does."""
        documents = [texts] if isinstance(texts, str) else texts
        return score_text(self.predictor, merged_stream(documents, self.predictor.tokenizer))


def note_shares(stores: Sequence[Store], answer: Answer) -> None:
    """Append one request to the ledger of every store, which learns the shares of its own documents, and no text."""
    for number, store in enumerate(stores):
        credited = (item for item in answer.documents if item.store == number and not item.context)
        shares = {item.document: Share(item.owner, item.license, item.share) for item in credited}
        store.note_usage(len(answer.tokens), shares)


def open_session(
    model: str | Path,
    stores: str | Path | Sequence[str | Path] = (),
    *,
    method: str | None = None,
    settings: Settings | str | None = None,
    policy: str = "",
    encoder: str | Path | None = None,
    home: str | Path = "silo-home",
    context: Callable[[LanguageModel], ContextProvider] | None = None,
    threads: int | None = None,
) -> Session:
    """Open directories. `settings` may be a name saved by `silo store tune` in `home`; `policy` is an expression.

    `context` makes what is put before the text by the method `ric`; passages as in the paper without it.
    """

    def named(method: frozenset[str]) -> Settings:
        return load_settings(Path(home), str(settings), method)

    predictor = open_predictor(
        model,
        [stores] if isinstance(stores, str | Path) else stores,
        method=method,
        settings=named if isinstance(settings, str) else settings,
        policy=Policy.parse(policy),
        encoder=encoder,
        context=context,
        threads=threads,
    )
    return Session(predictor)
