"""Scores equal a brute-force reference in float64, token for token."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from silo.errors import SiloError
from silo.inference.context import RicContext
from silo.inference.gates import log_counts
from silo.inference.generate import score_tokens
from silo.inference.mix import component_weights, neighbour_weights
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.session import Session
from silo.inference.settings import ORDERS, Ric, Settings
from silo.lm.encode import DocumentEncoder
from silo.lm.model import LanguageModel
from silo.lm.scoring import score
from silo.lm.windows import Windows
from silo.pairing import create_store
from silo.search.knn.codec import Codec
from silo.store.policy import Policy
from silo.store.view import NEAREST, Neighbours
from silo.text.stream import TokenStream
from tests.inference.world import TEXTS, documents, ids_of, make_model, make_store
from tests.store.small import document

LONG = "The quick brown fox is not the lazy dog. The licensee shall not copy the sea. " * 3
METHODS = ["lm", "knn", "ngram", "knn+ngram"]


def opened(place: Path, method: str, **more: object) -> Predictor:
    settings = more.pop("settings", Settings(k=20, tau=20.0).with_values(lam=0.4))
    stores = [place / "store"] if method != "lm" else []
    return open_predictor(more.pop("model", place / "model"), stores, method=method, settings=settings, **more)  # type: ignore[arg-type]


def text_of(content: str) -> TokenStream:
    ids = ids_of(content)
    scored = np.ones(len(ids), dtype=np.bool_)
    scored[0] = False
    return TokenStream(ids, scored, scored.astype(np.uint32))


class Reference:
    """The formulas, written down naively, in float64."""

    def __init__(self, place: Path, names: list[str], k: int, tau: float, lam: float) -> None:
        self.model = LanguageModel.open(place / "model")
        self.k, self.tau, self.lam = k, tau, lam
        self.codec = Codec.open(place / "model" / "codec")
        held = sorted((item for item in documents() if item.external_id in names), key=lambda item: item.id)
        self.texts = [ids_of(item.text) for item in held]
        encoder = DocumentEncoder(self.model)
        rows = [
            (self.codec.reconstruct(self.codec.encode(keys)).astype(np.float64), ids[1:])
            for ids, keys in zip(self.texts, encoder.keys(self.texts), strict=True)
        ]
        self.rows = np.concatenate([row for row, _ in rows])
        self.values = np.concatenate([values for _, values in rows])

    def logits(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            output = self.model.forward(torch.from_numpy(ids.astype(np.int64))[None])
        return output.logits[0, -1].double().numpy(), output.hidden[0, -1].numpy()

    def window(self, position: int) -> int:
        windows = Windows().within(self.model.context)
        if position < windows.length:
            return 0
        scored = windows.length + (position - windows.length) // windows.stride * windows.stride
        return scored + windows.stride - windows.length

    def probability(self, ids: np.ndarray, position: int, method: frozenset[str]) -> float:
        token = int(ids[position])
        logits, key = self.logits(ids[self.window(position) : position])
        total = math.exp(logits[token] - logits.max()) / np.exp(logits - logits.max()).sum()
        if "knn" in method:
            query = self.codec.transform(key[None]).astype(np.float64)[0]
            distances = ((self.rows - query) ** 2).sum(1)
            nearest = np.argsort(distances, kind="stable")[: self.k]
            weights = np.exp(-(distances[nearest] - distances[nearest].min()) / self.tau)
            mass = weights[self.values[nearest] == token].sum() / weights.sum()
            total = (1 - self.lam) * total + self.lam * mass
        if "ngram" in method:
            for length, following in self.levels(ids[:position]):
                count = sum(following.values())
                sizes = log_counts(np.array([length])), log_counts(np.array([count]))
                peak = np.array([1 / np.exp(logits - logits.max()).sum()])
                gate = Settings().ngram.of(*sizes, np.array([len(following) / count]), peak)[0]
                total = (1 - gate) * total + gate * following[token] / count
        return float(total)

    def levels(self, prefix: np.ndarray) -> list[tuple[int, Counter[int]]]:
        found = [(n, self.following(prefix, n)) for n in range(1, len(prefix))]
        found = list(itertools.takewhile(lambda pair: pair[1], found))
        return [pair for pair in found if pair[0] in ORDERS or pair[0] == len(found)]

    def following(self, prefix: np.ndarray, n: int) -> Counter[int]:
        context = prefix[len(prefix) - n :].tolist()
        found: Counter[int] = Counter()
        for text in self.texts:
            plain = text.tolist()
            found.update(plain[at + n] for at in range(1, len(plain) - n) if plain[at : at + n] == context)
        return found


@pytest.mark.parametrize("method", METHODS)
def test_every_token_has_the_probability_of_the_reference(place: Path, method: str) -> None:
    predictor = opened(place, method)
    text = text_of(LONG)
    scored = score_text(predictor, text)
    reference = Reference(place, list(TEXTS), 20, 20.0, 0.4)
    wanted = [math.log(reference.probability(text.ids, at, predictor.method)) for at in range(1, len(text.ids))]
    assert len(text.ids) > 3 * 64, "several windows"
    assert np.allclose(scored.logs[1:], wanted, rtol=0, atol=2e-5)
    assert scored.total.perplexity == pytest.approx(math.exp(-np.mean(wanted)), rel=1e-6)
    assert np.allclose(scored.shares.sum(axis=1), 1.0)


def test_the_language_model_alone_is_scored_as_lm_eval_does(place: Path) -> None:
    predictor = opened(place, "lm")
    plain = score(predictor.network, text_of(LONG), predictor.windows)
    assert score_text(predictor, text_of(LONG)).total == plain


@pytest.mark.parametrize("method", METHODS)
def test_a_policy_is_a_store_of_its_documents_alone(place: Path, tmp_path: Path, method: str) -> None:
    if method == "lm":
        pytest.skip("no store")
    policy = Policy.of(licenses=["MIT"])
    make_store(tmp_path / "store", place / "model", [item for item in documents() if item.license == "MIT"]).close()
    under = score_text(opened(place, method, policy=policy), text_of(LONG))
    settings = Settings(k=20, tau=20.0).with_values(lam=0.4)
    alone = score_text(
        open_predictor(place / "model", [tmp_path / "store"], method=method, settings=settings), text_of(LONG)
    )
    assert (under.logs == alone.logs).all(), "bit for bit"
    assert (score_text(opened(place, method), text_of(LONG)).logs != alone.logs).any()


def test_two_stores_are_read_as_one(place: Path, tmp_path: Path) -> None:
    for name, half in (("a", documents()[:2]), ("b", documents()[2:])):
        make_store(tmp_path / name, place / "model", half).close()
    settings = Settings(k=20, tau=20.0).with_values(lam=0.4)
    both = open_predictor(place / "model", [tmp_path / "a", tmp_path / "b"], method="knn+ngram", settings=settings)
    assert np.allclose(score_text(both, text_of(LONG)).logs, score_text(opened(place, "knn+ngram"), text_of(LONG)).logs)


def test_scores_do_not_depend_on_threads(place: Path) -> None:
    text = text_of(LONG)
    one = score_text(opened(place, "knn+ngram"), text)
    torch.set_num_threads(2)
    two = score_text(opened(place, "knn+ngram"), text)
    torch.set_num_threads(1)
    assert (one.logs == two.logs).all()


@pytest.mark.parametrize(
    "ric", [Ric(), Ric("ensemble", 2), Ric("ensemble", 2, "score"), Ric("concat", 2), Ric("concat-next")]
)
def test_ric_reads_the_passage_before_the_text(place: Path, ric: Ric) -> None:
    predictor = opened(place, "ric", settings=Settings(ric=ric))
    text = text_of(LONG)
    scored = score_text(predictor, text)
    assert predictor.context is not None
    reference = Reference(place, list(TEXTS), 20, 20.0, 0.4)
    ids = text.ids.astype(np.int64)
    for position in (5, 9, 17, 40, 150, 200):
        window = predictor.context.window_at(position)
        assert window.first <= position < window.until
        with predictor.reading() as retriever:
            before = predictor.context.find(ids, window, retriever)
        assert sum(item.weight for item in before) == pytest.approx(1.0)
        total = 0.0
        for item in before:
            logits, _ = reference.logits(np.concatenate([item.tokens, ids[window.start : position]]))
            total += item.weight * np.exp(logits[ids[position]] - logits.max()) / np.exp(logits - logits.max()).sum()
        assert scored.logs[position] == pytest.approx(math.log(total), abs=1e-5)
    if ric.variant == "ensemble":
        assert len(before) == 2


def test_concat_next_takes_what_really_follows(place: Path) -> None:
    predictor = opened(place, "ric", settings=Settings(ric=Ric("concat-next", passage_tokens=30)))
    provider = RicContext(64, Ric("concat-next", passage_tokens=30), predictor.tokenizer)
    ids = ids_of("the licensee shall").astype(np.int64)
    with predictor.reading() as retriever:
        (before,) = provider.find(ids, provider.window_at(len(ids)), retriever)
    shown = predictor.tokenizer.decode(before.tokens[1:].astype(np.uint32))
    assert shown in TEXTS["law"]
    assert len(before.tokens) == 31


@pytest.mark.parametrize("content", ["x", "7", "a b"])
def test_a_store_of_one_tiny_document_can_be_searched(place: Path, tmp_path: Path, content: str) -> None:
    """All distances are next to 0, where rounding is all there is."""
    store = create_store(tmp_path / "store", place / "model")
    store.add([document("tiny", content)])
    assert store.self_test()["distance_error"] < 1e-4
    assert score_text(opened(tmp_path, "knn", model=place / "model"), text_of(content)).total.tokens == len(content)


def test_component_weights_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    for count in range(5):
        weights = component_weights(rng.random((50, count)))
        assert weights.shape == (50, count + 1)
        assert np.allclose(weights.sum(axis=1), 1.0)
    gates = np.array([[0.25]])
    assert component_weights(gates).tolist() == [[0.75, 0.25]]


def test_neighbour_weights_are_a_softmax_and_nothing_without_neighbours() -> None:
    distances = np.array([[0.0, 2.0, np.inf], [np.inf] * 3], dtype=np.float32)
    weights = neighbour_weights(distances, 2.0)
    assert weights[0] == pytest.approx([1 / (1 + math.exp(-1)), math.exp(-1) / (1 + math.exp(-1)), 0.0])
    assert (weights[1] == 0).all()


def test_another_model_than_the_lm_may_make_the_keys(place: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path, seed=2)
    settings = Settings(k=20, tau=20.0).with_values(lam=1.0)
    own = open_predictor(place / "model", [place / "store"], method="knn", settings=settings)
    swapped = open_predictor(other, [place / "store"], method="knn", settings=settings)
    assert swapped.encoder is not None and swapped.encoder.opened.fingerprint == own.opened.fingerprint
    assert np.allclose(score_text(swapped, text_of(LONG)).logs, score_text(own, text_of(LONG)).logs, atol=1e-6)
    with pytest.raises(SiloError, match="store-mismatch"):
        open_predictor(other, [place / "store"], method="knn", encoder=other)


def test_a_token_that_grows_out_of_the_context_is_of_the_continuation(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tokenizers write "a" and "ab" as one token each: nothing would be left to score."""
    session = Session(opened(place, "lm"))
    tokens = {"a": [1], "ab": [2], "xa": [7, 1], "xab": [7, 2]}
    monkeypatch.setattr(
        type(session.predictor.tokenizer),
        "encode",
        lambda _, texts: [np.array(tokens[text], dtype=np.uint32) for text in texts],
    )
    for found in session.loglikelihood([("a", "b"), ("xa", "b")]):
        assert found.logprob < 0


def test_the_likelihood_of_a_continuation_is_the_sum_over_its_tokens(place: Path) -> None:
    session = Session(opened(place, "knn+ngram"))
    context, continuation = "The quick brown ", "fox jumps"
    found = session.loglikelihood([(context, continuation), ("", "The"), (context, "")])
    scores = [item.log_probability for item in score_tokens(session.predictor, context + continuation)]
    read = len(context.rstrip())
    assert found[0].logprob == pytest.approx(sum(scores[1 + read :]), abs=1e-9)  # type: ignore[arg-type]
    assert found[1].logprob == pytest.approx(sum(scores[1:4]), abs=1e-9)  # type: ignore[arg-type]
    greedy = session.answer("The quick", max_tokens=4, temperature=0.0)
    (likely,) = session.loglikelihood([("The quick", "".join(step.text for step in greedy.steps))])
    assert likely.is_greedy and likely.logprob > session.loglikelihood([("The quick", "zzzz")])[0].logprob


def test_a_tau_that_nobody_chose_follows_the_codec(place: Path) -> None:
    predictor = open_predictor(place / "model", [place / "store"], method="knn", settings=Settings(k=20))
    codec = predictor.stores[0].codec
    assert codec is not None
    assert predictor.settings.tau == pytest.approx(codec.spread / 8)
    predictor.settings = Settings(k=20, tau=3.0)
    assert predictor.settings.tau == 3.0


def test_kinds_are_the_different_tokens_after_the_nearest() -> None:
    rows = np.array([[0, 1, 2, 3, -1], [-1, -1, -1, -1, -1]])
    values = np.array([[7, 9, 7, 0, 0], [0, 0, 0, 0, 0]])
    near = Neighbours(rows * 0, rows, rows, values, np.zeros((2, 5), dtype=np.float32), ())
    assert near.kinds.tolist() == [3, 0]
    many = np.arange(40)[None]
    assert Neighbours(many, many, many, many, np.zeros((1, 40), dtype=np.float32), ()).kinds.tolist() == [NEAREST]
