"""`silo.open`: a model and stores, and on them generate, answer and score, with plain values as arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from silo.inference.answer import Answer
from silo.inference.asking.asks import Asking
from silo.inference.asking.choose import TokenScore
from silo.inference.context import ContextProvider
from silo.inference.generate import GenerateOptions, Step, generate, score_tokens, scoring, writing
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Settings, load_settings
from silo.lm.engine.decoder import DecodingModel
from silo.lm.engine.weights import Storage
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.usage import Share
from silo.text.stream import merged_stream

if TYPE_CHECKING:
    from silo.inference.score import Scored


class Likelihood(NamedTuple):
    """The log-probability of a continuation, and whether greedy decoding would write it."""

    logprob: float
    is_greedy: bool


class Session:
    """What a predictor can be asked for. Stores are read as they are at each call, and at each token of a text."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor

    def generate(self, prompt: str, **options: Any) -> Iterator[Step]:
        """The steps of a continuation, one by one; options as for `GenerateOptions.of`, refused before the first."""
        return generate(self.predictor, prompt, GenerateOptions.of(**options))

    def writing(self, prompt: str | NDArray[Any], options: GenerateOptions) -> Asking[Step]:
        """As `generate`, for a text that is written among others."""
        return writing(self.predictor, prompt, options)

    def scoring(self, prompt: str | NDArray[Any], alternatives: int = 0) -> Asking[TokenScore]:
        """As `score_tokens`, for a text that is scored among others."""
        return scoring(self.predictor, prompt, alternatives)

    @staticmethod
    def check(**options: Any) -> None:
        """Refuse wrong options of `generate`, for those who would rather know before a model is opened."""
        GenerateOptions.of(**options)

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
        from silo.inference.score import score_text

        documents = [texts] if isinstance(texts, str) else texts
        return score_text(self.predictor, merged_stream(documents, self.predictor.tokenizer))

    def loglikelihood(self, pairs: Iterable[tuple[str, str]]) -> list[Likelihood]:
        """How likely each continuation is after its context, as evaluations by multiple choice ask."""
        return [self._likelihood(context, continuation) for context, continuation in pairs]

    def _likelihood(self, context: str, continuation: str) -> Likelihood:
        """The context has the tokens it would have alone; white space at its end belongs to the continuation.

        So does a token that the continuation grows into one with the end of the context.
        """
        read, whole = self.predictor.tokenizer.encode([context.rstrip(), context + continuation])
        same = takewhile(lambda pair: pair[0] == pair[1], zip(read.tolist(), whole.tolist(), strict=False))
        given = sum(1 for _ in same)
        scores = score_tokens(self.predictor, whole, alternatives=1, given=given)
        written = [score for score in scores if score.log_probability is not None]
        greedy = all(score.token == score.alternatives[0][0] for score in written)
        return Likelihood(sum(score.log_probability or 0.0 for score in written), greedy)


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
    context: Callable[[DecodingModel], ContextProvider] | None = None,
    threads: int | None = None,
    storage: Storage = "auto",
) -> Session:
    """Open directories. `settings` may be a name saved by `silo store tune` in `home`; `policy` is an expression.

    `context` makes what is put before the text by the method `ric`; passages as in the paper without it. `threads` and
    `storage` are as for `DecodingModel.open`.
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
        storage=storage,
    )
    return Session(predictor)
