"""Questions to stores: read what was found, answer from it, and say on which sentences that rests.

The stores are opened first and the model only when a question needs it: what is not in the stores is said without one.
Both stay open, so that the next question costs reading and writing alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from silo.errors import SiloError
from silo.inference.ask.cite import cite
from silo.inference.ask.evidence import Evidence, Source
from silo.inference.ask.prompt import AnswerContext, Lookup, NoRoomError, Prompt, Turn
from silo.inference.ask.reply import NOT_FOUND, Citation, Reply
from silo.inference.ask.support import Support, find_support
from silo.inference.ask.words import stems
from silo.inference.gates import Gate, log_nodes
from silo.inference.retrieval import reading
from silo.inference.settings import Settings
from silo.pairing import find_model, open_store
from silo.rights.notices import notice_lines
from silo.store.policy import Policy
from silo.store.store import Store
from silo.store.usage import Share
from silo.text.sentences import Sentence, split_sentences

if TYPE_CHECKING:
    from silo.inference.answer import Answer
    from silo.inference.generate import Step
    from silo.inference.predict import Predictor
    from silo.lm.engine.decoder import DecodingModel

FOUND_FROM = 0.66
"""The rating of the best sentence from which on a question counts as answerable: docs/results/ask.md."""
CONFIDENT_FROM = -0.25
"""The mean log-probability of its tokens from which on a model's sentence is shown: what it is less sure of is often
put together wrongly from the right words, and the sentence itself is quoted instead."""
EXCERPTS = 1
"""What a small chat model can read: with more it loses the question."""
_CITED = 3
_LONGEST_QUOTE = 320
"""Characters of two sentences that are quoted together."""
_TURNS = 2
"""Earlier questions and answers that a follow-up question stands after."""
_QUOTING = Gate((log_nodes((3, 4, 6, 10)),), np.array([0.0, 0.1, 0.2, 0.3]))
"""A model that speaks well needs no help with short matches, which lead astray; from four tokens on it is a quote."""

Show = Callable[["Step"], None]


class Asker:
    """Stores with the model that answers from them."""

    def __init__(
        self, stores: Sequence[Store], model: Path, *, policy: Policy, excerpts: int, threads: int | None
    ) -> None:
        self.stores = tuple(stores)
        self.policy = policy
        self._root, self._threads = model, threads
        self._excerpts = excerpts
        self._prompt = Prompt(model, stores[0].tokenizer)
        self._loading = Lock()
        self._loaded: DecodingModel | None = None

    @classmethod
    def open(
        cls,
        stores: str | Path | Sequence[str | Path],
        model: str | Path | None = None,
        *,
        policy: str = "",
        excerpts: int = EXCERPTS,
        threads: int | None = None,
    ) -> Asker:
        """Open store directories; without `model` the one that the first of them was made with.

        The model reads so many `excerpts`.
        """
        rule = Policy.parse(policy)
        if excerpts < 1:
            raise SiloError("usage", "a model reads at least one excerpt")
        paths = [stores] if isinstance(stores, str | Path) else stores
        opened = [open_store(Path(path)) for path in paths]
        for store in opened:
            store.config.require("bm25")
        place = find_model(opened, Path(model) if model else None)
        return cls(opened, place, policy=rule, excerpts=excerpts, threads=threads)

    def ask(
        self,
        question: str,
        *,
        turns: Sequence[Turn] = (),
        max_tokens: int = 64,
        guard: int | None = None,
        ledger: bool = False,
        show: Show = lambda _: None,
    ) -> Reply:
        """Answer a question; `show` is given the tokens of a sentence as soon as it is clear what it rests on.

        `turns` are earlier questions and answers; one that rests on a document which has gone since is left out.
        `guard` and `ledger` are as for `silo generate`.
        """
        if not question.strip():
            raise SiloError("usage", "the question is empty")
        lookup = Lookup(question, [turn for turn in turns[-_TURNS:] if self._holds(turn.documents)])
        if self._evidence(lookup) is None:
            return Reply(question, NOT_FOUND, found=False, policy=self.policy.describe())
        try:
            steps = self._write(lookup, max_tokens, guard, show)
        except NoRoomError:  # the sentence itself can be quoted all the same
            steps = []
        evidence = self._evidence(lookup)  # documents may have gone meanwhile
        if evidence is None:
            return Reply(question, NOT_FOUND, found=False, policy=self.policy.describe())
        reply = self._answered(question, evidence, steps, guard) or self._quoted(question, evidence, guard)
        if ledger:
            self._note_usage(reply)
        return reply

    def load_model(self) -> None:
        """Load the model now, so that the first question need not wait for it; from any thread."""
        _ = self._model

    def _holds(self, documents: Iterable[str]) -> bool:
        return all(any(store.holds(document) for store in self.stores) for document in documents)

    def _evidence(self, lookup: Lookup) -> Evidence | None:
        """What the stores hold on a question now, None if that is too little."""
        with reading(self.stores, self.policy) as retriever:
            evidence = lookup.evidence(retriever)
        return evidence if evidence.strength >= FOUND_FROM else None

    def generate(self, lookup: Lookup, *, max_tokens: int, guard: int | None = None) -> Iterator[Step]:
        """What the model says to a question, whether or not it rests on anything."""
        from silo.inference.generate import GenerateOptions, generate
        from silo.inference.guard import Guard

        protection = None if guard is None else Guard(guard)
        options = GenerateOptions(max_tokens, stop=self._prompt.stops, guard=protection)
        return generate(self._predictor(lookup), "", options)

    def _write(self, lookup: Lookup, max_tokens: int, guard: int | None, show: Show) -> list[Step]:
        """What the model says while it is sure, rests on something and is about the question."""
        kept: list[Step] = []
        for sentence in _by_sentence(self.generate(lookup, max_tokens=max_tokens, guard=guard)):
            evidence = self._evidence(lookup)
            if evidence is None or not _is_confident(sentence) or not self._supports(_text(sentence), evidence):
                break
            if kept and (sentence[-1].finish == "length" or not evidence.question.covered(stems(_text(sentence)))):
                break  # it is cut off, or goes on to something else
            kept += sentence
            for step in sentence:
                show(step)
        return kept

    def _predictor(self, lookup: Lookup) -> Predictor:
        """The model with passages before the answer, and with what follows the same words in the stores."""
        from silo.inference.predict import Predictor

        offered = {search for store in self.stores for search in store.config.searches}
        context = AnswerContext(self._prompt, lookup, context=self._model.context, excerpts=self._excerpts)
        return Predictor(
            self._model,
            self.stores,
            method=frozenset({"ric"} | (offered & {"ngram"})),
            settings=Settings(ngram=_QUOTING),
            policy=self.policy,
            encoder=None,
            context=context,
        )

    @property
    def _model(self) -> DecodingModel:
        with self._loading:
            if self._loaded is None:
                from silo.lm.engine.decoder import DecodingModel

                self._loaded = DecodingModel.open(self._root, threads=self._threads)
            return self._loaded

    def _answered(self, question: str, evidence: Evidence, steps: Sequence[Step], guard: int | None) -> Reply | None:
        """The model's answer with what it rests on, if there is one and it does."""
        supports = self._supports(_text(steps), evidence)
        if not supports:
            return None
        from silo.inference.answer import Answer

        answer = Answer.of(self.stores, self.policy, "", steps)
        credited = {item.document: item.share for item in answer.documents}
        ranked = sorted(supports, key=lambda item: -item.strength - credited.get(item.excerpt.source.document.id, 0.0))
        citations = [self._cite(item.excerpt.source, item.sentences, guard) for item in ranked]
        return Reply(
            question,
            answer.text.strip(),
            found=True,
            citations=tuple(dict.fromkeys(citations))[:_CITED],
            shares=_named_shares(answer),
            lm_share=answer.lm_share,
            notices=answer.notices,
            policy=answer.policy,
            answer=answer,
        )

    def _supports(self, text: str, evidence: Evidence) -> list[Support]:
        """What each sentence of a text rests on; nothing if one of them rests on nothing."""
        excerpts = evidence.excerpts(self._excerpts)
        found = [find_support(item.text, evidence.question, excerpts) for item in split_sentences(text)]
        return [item for item in found if item] if all(found) else []

    def _quoted(self, question: str, evidence: Evidence, guard: int | None) -> Reply:
        """The best sentence itself, with one beside it."""
        best = evidence.rated[0]
        source, citation = best.source, self._cite(best.source, _quotation(evidence), guard, best=best.sentence)
        return Reply(
            question,
            " ".join(citation.quote.split()) or f"It is in {citation.document}, which may not be quoted.",
            found=True,
            quoted=True,
            citations=(citation,),
            shares={citation.document: 1.0},
            notices=tuple(notice_lines([source.document])),
            policy=self.policy.describe(),
        )

    def _cite(
        self, source: Source, sentences: Sequence[Sentence], guard: int | None, *, best: Sentence | None = None
    ) -> Citation:
        """What may be quoted of some sentences; the place is that of the best of them."""
        return cite(source, sentences, self.stores[source.store].tokenizer, most=guard, best=best)

    def _note_usage(self, reply: Reply) -> None:
        """Note in the stores' ledgers whose text had which part, and no text."""
        from silo.inference.session import note_shares

        if reply.answer:
            note_shares(self.stores, reply.answer)
            return
        citation = reply.citations[0]
        (ids,) = self.stores[0].tokenizer.encode([reply.text])
        for store in self.stores:
            if store.holds(citation.id):
                store.note_usage(len(ids), {citation.id: Share(citation.owner, citation.licence, float(len(ids)))})


def _by_sentence(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """The steps of one sentence after the other."""
    sentence: list[Step] = []
    for step in steps:
        if sentence and len(split_sentences(_text([*sentence, step]))) > 1:
            yield sentence
            sentence = []
        sentence.append(step)
    if sentence:
        yield sentence


def _text(steps: Iterable[Step]) -> str:
    return "".join(step.text for step in steps)


def _is_confident(steps: Sequence[Step]) -> bool:
    """Was the model sure of a sentence?"""
    logs = [step.log_probability for step in steps if step.token >= 0]
    return bool(logs) and sum(logs) / len(logs) >= CONFIDENT_FROM


def _quotation(evidence: Evidence) -> list[Sentence]:
    """The best sentence, and the better one of those beside it that hold a word of the question, if both are short."""
    best, words = evidence.rated[0], evidence.question.weights.keys()
    beside = (
        item
        for item in evidence.rated[1:]
        if item.source is best.source and abs(item.number - best.number) == 1 and item.words & words
    )
    both = sorted({best.number, next(beside, best).number})
    sentences = [best.source.sentences[number] for number in both]
    return sentences if sentences[-1].end - sentences[0].start <= _LONGEST_QUOTE else [best.sentence]


def _named_shares(answer: Answer) -> dict[str, float]:
    """Mean shares by the names of documents, largest first."""
    names = {item.document: item.external_id or item.document for item in answer.documents}
    shares: dict[str, float] = {}
    for document, share in answer.shares():
        shares[names[document]] = shares.get(names[document], 0.0) + share
    return shares
