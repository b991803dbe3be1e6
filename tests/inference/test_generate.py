"""Generation: the numbers of `score`, credit that adds up, a guard without holes, erasure between two tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from silo.errors import SiloError
from silo.inference.answer import Answer
from silo.inference.asking.choose import Sampling, TokenScore
from silo.inference.credit import Totals, by_sentence
from silo.inference.generate import GenerateOptions, Step, generate, score_tokens
from silo.inference.guard import Guard
from silo.inference.predict import Predictor, open_predictor
from silo.inference.score import score_text
from silo.inference.settings import Ric, Settings
from silo.lm.engine import decoder
from silo.lm.engine.engine import Engine, Forward
from silo.pairing import open_store
from silo.store.selector import Selector
from silo.text.stream import TokenStream
from tests.inference.test_score import text_of
from tests.inference.world import TEXTS, make_store

METHODS = ["lm", "knn", "ngram", "knn+ngram", "ric", "ric+knn", "ngram+ric"]
PROMPTS = ["The quick", "The licensee shall not", "Tea is made", "x"]


def opened(
    place: Path, method: str = "knn+ngram", lam: float = 0.4, threads: int | None = None, **settings: object
) -> Predictor:
    chosen = Settings(k=20, tau=20.0, **settings).with_values(lam=lam)  # type: ignore[arg-type]
    return open_predictor(place / "model", [place / "store"], method=method, settings=chosen, threads=threads)


def run(predictor: Predictor, prompt: str, tokens: int = 12, **options: object) -> list[Step]:
    return list(generate(predictor, prompt, GenerateOptions(tokens, **options)))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_the_greedy_path_has_the_log_probabilities_of_score(place: Path, method: str) -> None:
    predictor = opened(place, method)
    for prompt in ("The quick", "The licensee shall not copy the sea. " * 3):
        steps = [step for step in run(predictor, prompt, 80) if step.token >= 0]
        ids = np.array([256, *prompt.encode(), *(step.token for step in steps)], dtype=np.uint32)
        found = score_text(predictor, TokenStream(ids, np.ones(len(ids), dtype=np.bool_), np.ones_like(ids)))
        assert len(ids) > 64
        assert np.allclose([step.log_probability for step in steps], found.logs[-len(steps) :], atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_that_is_known_is_read_many_tokens_at_a_time(
    place: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, forward = "The licensee shall not copy the sea. " * 3, Engine.forward
    found: list[list[TokenScore]] = []
    passes: list[int] = []

    def count(engine: Engine, ids: Any, *arguments: Any, **options: Any) -> Forward:
        passes[-1] += 1
        return forward(engine, ids, *arguments, **options)

    monkeypatch.setattr(Engine, "forward", count)
    for ahead in (0, 64):
        monkeypatch.setattr(decoder, "_MOST_AHEAD", ahead)
        passes.append(0)
        found.append(list(score_tokens(opened(place, method), text, 3)))
    assert found[0] == found[1]
    if method == "lm":
        assert passes[0] == len(text) and passes[1] <= passes[0] / 8


def test_the_number_of_threads_shows_in_no_score_and_in_no_text(place: Path) -> None:
    logs, scores = [], []
    for threads in (1, 2):
        predictor = opened(place, threads=threads)
        logs.append([step.log_probability for step in run(predictor, "The quick", 40)])
        scores.append(score_text(predictor, text_of("The licensee shall not copy the sea. " * 5)).logs)
    assert logs[0] == logs[1] and np.array_equal(scores[0], scores[1])


def test_the_engines_threads_do_not_show_in_a_text(place: Path) -> None:
    one, two = (open_predictor(place / "model", [place / "store"], method="knn+ngram", threads=n) for n in (1, 2))
    for prompt in PROMPTS:
        assert run(one, prompt, 40) == run(two, prompt, 40)


def test_drafts_change_nothing_but_the_time(place: Path) -> None:
    """Greedy and sampled, guarded or not: the same tokens, probabilities and credits to the bit."""
    with_drafts, without = opened(place, "knn+ngram", lam=0.2), opened(place, "knn+ngram", lam=0.2)
    without.drafting = False
    for prompt in (*PROMPTS, "The sea is wide and the sea is deep; the ship"):
        for sampling in (Sampling(), Sampling(0.8, seed=1), Sampling(1.2, top_k=5, seed=2)):
            for guard in (None, Guard(6)):
                options = {"sampling": sampling, "guard": guard}
                assert run(with_drafts, prompt, 60, **options) == run(without, prompt, 60, **options)
    drafts = with_drafts.opened.drafts
    assert 0 < drafts.accepted < drafts.guessed
    assert without.opened.drafts.guessed == 0


@pytest.mark.parametrize("method", ["ngram+ric", "ric+knn+ngram"])
def test_drafts_change_nothing_with_passages_before_the_text(place: Path, method: str) -> None:
    ric = Ric(variant="ensemble", passages=3)
    with_drafts, without = (opened(place, method, ric=ric) for _ in range(2))
    without.drafting = False
    assert run(with_drafts, "The licensee shall", 30) == run(without, "The licensee shall", 30)


@pytest.mark.parametrize("method", METHODS)
def test_shares_add_up_to_one_exactly_in_any_order(place: Path, method: str) -> None:
    for prompt in PROMPTS:
        for step in run(opened(place, method), prompt):
            if step.token < 0:
                continue
            shares = [item.share for item in step.credits]
            assert step.lm_share + sum(shares) == 1.0
            assert sum(reversed(shares)) + step.lm_share == 1.0
            assert step.lm_share >= 0 and all(share > 0 for share in shares if share)
            if method == "lm":
                assert step.lm_share == 1.0 and not step.credits
            assert ("ric" in method) >= any(item.context for item in step.credits)


def test_credit_is_what_leaving_the_document_out_takes_away(place: Path, tmp_path: Path) -> None:
    """With fixed component weights a document's n-gram credit is its count over the total: checked by hand."""
    predictor = opened(place, "ngram")
    (step,) = run(predictor, "The quick brown f", 1)
    assert step.text == "o"
    names = {item.external_id: item.share for item in step.credits}
    assert set(names) == {"fox", "dog", "law"} or {"fox", "dog"} <= set(names)
    assert names["fox"] > names["dog"], "two occurrences against one"


def test_cached_generation_equals_generation_from_scratch(place: Path) -> None:
    predictor = opened(place)
    prompt = "The quick"
    written: list[Step] = []
    for step in run(predictor, prompt, 70):
        fresh = run(predictor, prompt, 70)[len(written)] if len(written) in (0, 30, 69) else step
        assert (fresh.token, fresh.log_probability) == (step.token, step.log_probability)
        written.append(step)


def test_the_mixture_sums_to_one(place: Path) -> None:
    for method in METHODS:
        predictor = opened(place, method)
        reader = predictor.reader()
        with predictor.reading() as sources:
            for prompt in PROMPTS:
                ids = np.array([256, *prompt.encode()], dtype=np.uint32)
                assert reader.predict(ids, sources).probabilities.sum() == pytest.approx(1.0, abs=1e-9)


def test_an_erased_document_is_gone_from_the_next_token_on(place: Path, tmp_path: Path) -> None:
    make_store(tmp_path / "store", place / "model").close()
    chosen = Settings(k=20, tau=20.0).with_values(lam=0.6)
    for method in ("knn+ngram", "ric+ngram"):
        predictor = open_predictor(place / "model", [tmp_path / "store"], method=method, settings=chosen)
        steps = generate(predictor, "The licensee shall not copy the", GenerateOptions(10))
        first = next(steps)
        if method == "knn+ngram":
            assert any(item.external_id == "law" for item in first.credits)
            open_store(tmp_path / "store").erase(Selector(document="law"))
        assert not any(item.external_id == "law" for step in steps for item in step.credits)


def test_credits_outlive_the_generation_they_come_from(place: Path, tmp_path: Path) -> None:
    """What was owed can be read after an erasure, which does not wait for it."""
    make_store(tmp_path / "store", place / "model").close()
    chosen = Settings(k=20, tau=20.0).with_values(lam=0.6)
    predictor = open_predictor(place / "model", [tmp_path / "store"], method="knn+ngram", settings=chosen)
    first = next(generate(predictor, "The licensee shall not copy the", GenerateOptions(10)))
    done = open_store(tmp_path / "store").erase(Selector(document="law"))
    assert done.documents
    assert "law" in {item.external_id for item in first.credits}
    assert first.credits.largest == first.credits[0]
    for count in range(1, len(first.credits) + 2):
        assert first.credits.first(count) == first.credits[:count]
    assert len(first.credits) == len(list(first.credits))


def test_totals_are_the_shares_of_all_tokens_added_up(place: Path, tmp_path: Path) -> None:
    """Also where the store changed between two tokens, and documents stand in other rows."""
    make_store(tmp_path / "store", place / "model").close()
    chosen = Settings(k=20, tau=20.0).with_values(lam=0.6)
    predictor = open_predictor(place / "model", [tmp_path / "store"], method="knn+ngram", settings=chosen)
    tokens = []
    for step in generate(predictor, "The licensee shall not copy the", GenerateOptions(6)):
        tokens.append(step.credits)
        if len(tokens) == 3:
            open_store(tmp_path / "store").erase(Selector(document="fox"))
    for some in (tokens, tokens[:3]):
        sums: dict[tuple[int, str], float] = {}
        for item in (item for owed in some for item in owed):
            sums[item.store, item.document] = sums.get((item.store, item.document), 0.0) + item.share
        totals, order = Totals(some), sorted(sums, key=lambda place: (-sums[place], place[1]))
        assert [(item.store, item.document) for item in totals.documents()] == order
        assert {(item.store, item.document): item.share for item in totals.documents()} == sums
        for count in range(1, len(order) + 1):
            assert totals.documents(most=count) == totals.documents()[:count]
        assert totals.documents(sums[order[1]]) == totals.documents()[:2]
        assert totals.shares_of([*sums, (0, "0" * 32), (7, order[0][1])]) == {
            **sums,
            (0, "0" * 32): 0.0,
            (7, order[0][1]): 0.0,
        }


def test_neighbours_show_the_text_around_them(place: Path) -> None:
    (step,) = run(opened(place, "knn"), "The quick brown f", 1, neighbours=3)
    assert len(step.neighbours) == 3
    for near in step.neighbours:
        assert any(near.left + near.continuation in text for text in TEXTS.values())
    assert [near.distance for near in step.neighbours] == sorted(near.distance for near in step.neighbours)


def test_a_seed_repeats_a_text_and_another_changes_it(place: Path) -> None:
    def text(seed: int) -> str:
        wish = Sampling(temperature=1.5, seed=seed)
        return "".join(step.text for step in run(opened(place), "The", 20, sampling=wish))

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) > 1


def test_stop_strings_end_a_text_before_them(place: Path) -> None:
    predictor = opened(place, "ngram", ngram=Settings().ngram)
    plain = "".join(step.text for step in run(predictor, "The quick brown", 30))
    mark = plain[8:11]
    steps = run(predictor, "The quick brown", 30, stop=(mark,))
    assert "".join(step.text for step in steps) == plain[: plain.index(mark)]
    assert steps[-1].finish == "stop"
    assert run(predictor, "The quick brown", 3)[-1].finish == "length"


def test_an_answer_rolls_up_and_gives_notice(place: Path) -> None:
    predictor = opened(place, "knn+ngram", lam=0.8)
    steps = run(predictor, "The sea is wide and the sea", 20)
    answer = Answer.of(predictor.stores, predictor.policy, "The sea", steps)
    total = sum(share for _, share in answer.shares())
    assert total + answer.lm_share == pytest.approx(1.0)
    for by in ("owner", "license"):
        assert sum(share for _, share in answer.shares(by)) == pytest.approx(total)
    assert any("name s as the author" in line and line.startswith("CC-BY-4.0") for line in answer.notices)
    shown = answer.as_json()
    assert "".join(item["text"] for item in shown["sentences"]) == shown["text"]


def test_sentences_end_at_their_marks() -> None:
    assert by_sentence(["One", ".", " Two", " more", "!\n", "x"]) == [slice(0, 2), slice(2, 5), slice(5, 6)]
    assert by_sentence([]) == []


def test_retrieval_may_be_skipped_where_the_model_is_sure(place: Path) -> None:
    never = opened(place, "knn", skip=1e-9)
    assert all(step.lm_share == 1.0 for step in run(never, "The quick"))


def test_off_is_off_for_a_model_that_is_certain() -> None:
    assert Settings().asks_neighbours(1.0)
    assert Settings(skip=0.9).asks_neighbours(np.array([0.5, 0.95])).tolist() == [True, False]


def test_bad_wishes_are_refused(place: Path) -> None:
    with pytest.raises(SiloError, match="usage"):
        run(opened(place), "x", 0)
    for bad in ({"temperature": -1}, {"top_p": 0}, {"top_k": -1}):
        with pytest.raises(SiloError, match="usage"):
            Sampling(**bad)
    with pytest.raises(SiloError, match="settings-invalid"):
        Ric("unheard-of")
    with pytest.raises(SiloError, match="needs a store"):
        open_predictor(place / "model", [], method="knn")
