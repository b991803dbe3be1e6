"""Scores of labels against a slow reference: the whole distribution of `Reader.predict`, token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from silo.evaluation.tasks.choose import Labelled
from silo.evaluation.tasks.classify import Layout, Variant, headline, make_prompts, variants
from silo.evaluation.tasks.task import Task, load_tasks
from silo.evaluation.tasks.verbalise import Verbaliser, verbalise, word_tokens
from silo.inference.gates import Gate
from silo.inference.predict import Predictor, open_predictor
from silo.inference.prompts.observe import observe_prompts
from silo.inference.settings import Ric, Settings, parse_method
from silo.lm.windows import Window
from silo.text.tokenizer import load_tokenizer
from tests.evaluation.tasks.folders import LETTERS, WORDS, write_task
from tests.inference.world import make_model, make_store

K = 40
SETTINGS = Settings(k=24, tau=30.0).with_values(lam=0.6)
GATED = Settings(k=24, tau=30.0, skip=0.2, knn=Gate(((0.0, 40.0), (0.0, 0.5)), np.array([[0.9, 0.5], [0.2, 0.1]])))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a store, and tasks with labels of one token and of several."""
    root = tmp_path_factory.mktemp("world")
    make_store(root / "store", make_model(root)).close()
    write_task(root / "tasks" / "letters", LETTERS)
    write_task(root / "tasks" / "words", WORDS)
    return root


def task_of(place: Path, name: str) -> Task:
    return next(task for task in load_tasks([place / "tasks"]) if task.name == name)


def opened(place: Path, method: str, settings: Settings) -> Predictor:
    return open_predictor(place / "model", [place / "store"], method=method, settings=settings)


def observed(predictor: Predictor, task: Task) -> tuple[Labelled, Verbaliser]:
    verbaliser = verbalise(task, predictor.opened)
    layout = Layout.of(verbaliser)
    examples = task.splits["validation"]
    prompts = make_prompts(task, examples, layout, predictor.tokenizer)
    labels = np.array([example.label for example in examples])
    return Labelled(observe_prompts(predictor, prompts), labels, layout, task.premise is not None), verbaliser


def whole_distribution(predictor: Predictor, ids: np.ndarray) -> np.ndarray:
    """What `silo generate` would draw from."""
    text = np.concatenate([[predictor.tokenizer.begin], ids])
    with predictor.reading() as retriever:
        return predictor.reader().predict(text, retriever).probabilities


def reference(predictor: Predictor, text: str, verbaliser: Verbaliser, variant: Variant) -> list[np.ndarray]:
    """Per label the logs that its score is made of, at one text."""
    room = predictor.opened.context - 1 - max(map(len, verbaliser.words))
    ids = predictor.tokenizer.encode([text])[0].astype(np.int64)[-room:]
    if variant.words:
        after = whole_distribution(predictor, ids)
        return [np.log(after[tokens]) for tokens in verbaliser.sets[variant.words]]
    return [
        np.array([
            np.log(whole_distribution(predictor, np.concatenate([ids, word[:at]]))[word[at]])
            for at in range(len(word))
        ])
        for word in verbaliser.words
    ]  # fmt: skip


def reference_scores(predictor: Predictor, task: Task, verbaliser: Verbaliser, variant: Variant) -> np.ndarray:
    before = reference(predictor, str(task.premise), verbaliser, variant)
    scores = []
    for example in task.splits["validation"]:
        logs = reference(predictor, task.prompt(example.text, ""), verbaliser, variant)
        if variant.pmi:
            gains = [here - there for here, there in zip(logs, before, strict=True)]
            scores.append([gain.mean() if variant.words else gain.sum() for gain in gains])
        else:
            scores.append([np.log(np.exp(log).sum()) if variant.words else log.sum() for log in logs])
    return np.array(scores)


@pytest.mark.parametrize("settings", [SETTINGS, GATED], ids=["fixed", "gated"])
@pytest.mark.parametrize("method", ["lm", "knn", "ngram", "knn+ngram"])
@pytest.mark.parametrize("name", ["letters", "words"])
def test_scores_are_those_of_the_whole_mixture(place: Path, name: str, method: str, settings: Settings) -> None:
    task = task_of(place, name)
    data, verbaliser = observed(opened(place, "knn+ngram", Settings(k=K)), task)
    slow = opened(place, method, settings)
    for variant in variants(task, verbaliser):
        found = data.scores(parse_method(method), settings, variant)
        assert found == pytest.approx(reference_scores(slow, task, verbaliser, variant), rel=1e-4, abs=1e-4)


def test_a_method_with_passages_reads_them_before_the_prompt(place: Path) -> None:
    task, ric = task_of(place, "letters"), Ric(variant="ensemble", passages=2, weighting="score")
    predictor = opened(place, "ric", Settings(ric=ric))
    data, verbaliser = observed(predictor, task)
    found = data.scores(frozenset({"ric"}), predictor.settings, Variant(True))
    rows = []
    for text, query in [(task.prompt(item.text, ""), item.text + "\n") for item in task.splits["validation"]] + [
        (str(task.premise), "")
    ]:
        ids, words = (part.astype(np.int64) for part in predictor.tokenizer.encode([text, query]))
        assert predictor.context is not None
        with predictor.reading() as retriever:
            items = predictor.context.find(words, Window(0, len(words), len(words) + 1), retriever)
        mean = np.zeros(predictor.network.vocabulary)
        for item in items:
            room = predictor.opened.context - len(item.tokens) - 1
            parts = [item.tokens, np.array([predictor.tokenizer.begin]), ids[-room:]]
            mean += item.weight * predictor.opened.decoder().read(np.concatenate(parts)).probabilities
        rows.append([np.log(mean[word[0]]) for word in verbaliser.words])
    assert found == pytest.approx(np.array(rows[:-1]) - np.array(rows[-1]), rel=1e-4, abs=1e-4)


def test_the_batch_does_not_show_in_a_score(place: Path) -> None:
    task = task_of(place, "words")
    predictor = opened(place, "knn+ngram", Settings(k=K))
    layout = Layout.of(verbalise(task, predictor.opened))
    prompts = make_prompts(task, task.splits["validation"], layout, predictor.tokenizer)
    together = observe_prompts(predictor, prompts).probabilities(frozenset({"knn", "ngram"}), SETTINGS)
    alone = [observe_prompts(predictor, [prompt]) for prompt in prompts]
    apart = np.concatenate([item.probabilities(frozenset({"knn", "ngram"}), SETTINGS) for item in alone])
    assert np.array_equal(together, apart)


def test_sets_of_unequal_size_do_not_help_a_label(place: Path) -> None:
    """With the sum, three words that all lose a little would lose against two that lose more."""
    task = task_of(place, "letters")
    data, verbaliser = observed(opened(place, "lm", Settings()), task)
    assert [len(tokens) for tokens in verbaliser.sets["fuzzy"]] == [3, 2]
    uniform = np.full(len(data.observed.places), 0.01).reshape(-1, data.layout.size)
    uniform[-1] = 0.02
    data.observed.lm.entries[:] = uniform.ravel()
    scores = data.scores(frozenset(), Settings(), Variant(True, "fuzzy"))
    assert scores == pytest.approx(np.full_like(scores, np.log(0.5)))


def test_the_headline_has_all_that_the_task_brings(place: Path) -> None:
    model = opened(place, "lm", Settings()).opened
    letters, words = task_of(place, "letters"), task_of(place, "words")
    assert headline(letters, verbalise(letters, model)).name == "pmi+fuzzy"
    assert headline(words, verbalise(words, model)).name == "pmi"
    names = [variant.name for variant in variants(letters, verbalise(letters, model, expand=True))]
    assert names == ["plain", "pmi", "fuzzy", "pmi+fuzzy", "expanded", "pmi+expanded"]


def test_a_word_follows_its_prompt_as_the_tokenizer_would_write_it(shared: Path) -> None:
    tokenizer = load_tokenizer(str(shared / "models" / "stories260K" / "tokenizer.json"))
    for anchor, word in (("It was", "big"), ("Answer:\n", "big"), ("It was", "unbelievable")):
        (tokens,) = word_tokens(tokenizer, anchor, [word])
        (before,) = tokenizer.encode([anchor])
        text = tokenizer.decode(np.concatenate([before, tokens.astype(np.uint32)]))
        assert text == anchor + ("" if anchor.endswith("\n") else " ") + word
