"""The overlap matrix against a plain reading of the paper: Counters, sets and regular expressions."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.report.overlap import Overlap, Sampling, overlap_matrix, sample_ngrams, stopwords
from silo.corpus.report.plots import plot_overlap
from silo.errors import SiloError
from silo.recipe import CorpusRecipe, DedupRecipe, SourceRecipe
from silo.records import Tier

IDEOGRAPH = "\u2e80-\ua4cf\uac00-\ud7a3"
WORD = re.compile(f"[{IDEOGRAPH}]|(?:(?![{IDEOGRAPH}])[a-z0-9\x80-\U0010ffff])+")
CURLY = re.compile("[\u00a0\u00ab\u00bb\u2013\u2014\u2018\u2019\u201c\u201d\u2026]")
LICENSES = {"pd": "CC0-1.0", "sw": "MIT", "by": "CC-BY-4.0", "restricted": "GPL-3.0-only"}
VOCABULARY = ["alpha", "beta", "Gamma", "delta", "éta", "theta", "the", "of", "And", "don't", "“iota”", "漢字", "k—l"]


def naive_words(text: str) -> list[str]:
    folded = "".join(char.lower() if char.isascii() else char for char in CURLY.sub(" ", text))
    return WORD.findall(folded)


def naive_ngrams(texts: Iterable[str], sample_tokens: int, min_documents: int) -> set[tuple[str, ...]]:
    held: Counter[tuple[str, ...]] = Counter()
    left = sample_tokens
    for text in texts:
        words = naive_words(text)[:left]
        left -= len(words)
        content = [word for word in words if word not in stopwords()]
        held.update({(word,) for word in content} | set(itertools.pairwise(content)))
    return {ngram for ngram, documents in held.items() if documents >= min_documents}


def random_records(rng: random.Random, domains: Iterable[tuple[str, str]], documents: int) -> list[dict[str, Any]]:
    """Records of (tier, domain) pairs; each domain prefers some words of the vocabulary."""
    records = []
    for tier, domain in domains:
        weights = [rng.random() ** 3 for _ in VOCABULARY]
        for at in range(documents):
            text = " ".join(rng.choices(VOCABULARY, weights, k=rng.randint(1, 30))) + f" unique{tier}{domain}{at}"
            record = {"id": f"{tier}{domain}{at}", "text": text, "domain": domain, "license": LICENSES[tier]}
            records.append({**record, "source": "here"})
    return records


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    data = "".join(json.dumps(record) + "\n" for record in records).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(packers.get(path.suffix, bytes)(data))
    return path


def make_corpus(place: Path, records: Iterable[dict[str, Any]]) -> Corpus:
    write_lines(place / "train.jsonl", records)
    source = SourceRecipe(kind="jsonl", paths=("train.jsonl",))
    build(CorpusRecipe(source=(source,), workers=1, dedup=DedupRecipe(enabled=False)), place / "corpus", base=place)
    return Corpus.open(place / "corpus")


def texts_by_id(corpus: Corpus, domain: str, tiers: Iterable[str]) -> list[str]:
    documents = corpus.documents(tiers=[Tier(tier) for tier in tiers], domains=[domain])
    return [document.text for document in sorted(documents, key=lambda document: document.id)]


def small_overlap(place: Path, train: str, test: str, **settings: Any) -> Overlap:
    """One training document and one evaluation document, every n-gram counts."""
    record = {"id": "1", "text": train, "domain": "t", "license": "MIT", "source": "here"}
    files = [write_lines(place / "test.jsonl", [{"text": test, "domain": "e"}])]
    return overlap_matrix(make_corpus(place, [record]), files, **{"min_documents": 1, "workers": 1, **settings})


@pytest.mark.parametrize(("seed", "words", "documents"), [(1, 10_000, 3), (2, 150, 2), (3, 97, 1)])
def test_the_matrix_is_that_of_a_plain_reading(tmp_path: Path, seed: int, words: int, documents: int) -> None:
    rng = random.Random(seed)
    trained = [("pd", "books"), ("by", "books"), ("sw", "code"), ("restricted", "news")]
    corpus = make_corpus(tmp_path, random_records(rng, trained, 12))
    evaluated = random_records(rng, [("pd", "books"), ("sw", "mail")], 14)
    rng.shuffle(evaluated)
    files = [write_lines(tmp_path / "a.jsonl.gz", evaluated[:9]), write_lines(tmp_path / "b.jsonl.zst", evaluated[9:])]
    found = overlap_matrix(corpus, [files[1], files[0]], sample_tokens=words, min_documents=documents, workers=1)
    assert found.rows == ("books", "code")
    assert found.columns == ("books", "mail")
    for row, name in enumerate(found.rows):
        left = naive_ngrams(texts_by_id(corpus, name, ("pd", "sw", "by")), words, documents)
        assert found.row_samples[row].ngrams == len(left) > 0
        for column, other in enumerate(found.columns):
            texts = [record["text"] for record in evaluated if record["domain"] == other]
            right = naive_ngrams(texts, words, documents)
            assert found.column_samples[column].ngrams == len(right) > 0
            assert found.coverage[row][column] == len(left & right) / len(right)
            assert found.jaccard[row][column] == len(left & right) / len(left | right)


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    rng = random.Random(4)
    corpus = make_corpus(tmp_path, random_records(rng, [("pd", "books"), ("sw", "code")], 6))
    files = [write_lines(tmp_path / "test.jsonl", random_records(rng, [("pd", "books")], 6))]
    steps: list[tuple[str, int, int]] = []
    two = overlap_matrix(corpus, files, workers=2, advance=lambda *step: steps.append(step))
    assert two == overlap_matrix(corpus, files, workers=1)
    assert steps[-1][1] == steps[-1][2] > 0


def test_bigrams_are_formed_after_stopwords_are_gone(tmp_path: Path) -> None:
    assert small_overlap(tmp_path, "cat mat", "The cat and the mat").coverage == ((1.0,),)


def test_the_order_of_a_bigram_counts(tmp_path: Path) -> None:
    assert small_overlap(tmp_path, "cat mat", "mat cat").coverage == ((2 / 3,),)


def test_curly_quotes_do_not_make_other_words(tmp_path: Path) -> None:
    assert small_overlap(tmp_path, "“Cats don’t,” said—Ann", "cats said ann").coverage == ((1.0,),)


def test_a_sample_ends_in_the_middle_of_a_document() -> None:
    sample, kept = sample_ngrams(["red green blue", "red green blue", "never read"], Sampling(5, 2))
    assert (sample.documents, sample.words) == (2, 5)
    assert len(kept) == 3


def test_tiers_choose_the_training_side(tmp_path: Path) -> None:
    rng = random.Random(5)
    corpus = make_corpus(tmp_path, random_records(rng, [("pd", "books"), ("restricted", "news")], 4))
    files = [write_lines(tmp_path / "test.jsonl", random_records(rng, [("pd", "books")], 4))]
    assert overlap_matrix(corpus, files, workers=1).rows == ("books",)
    assert overlap_matrix(corpus, files, workers=1, tiers=Tier).rows == ("books", "news")
    with pytest.raises(SiloError) as caught:
        overlap_matrix(corpus, files, workers=1, tiers=[Tier.sw])
    assert caught.value.code == "input-empty"


def test_an_opted_out_document_is_not_compared(tmp_path: Path) -> None:
    texts = ("red green", "blue")
    records = [{"id": text, "text": text, "domain": "t", "license": "MIT"} for text in texts]
    corpus = make_corpus(tmp_path, records)
    files = [write_lines(tmp_path / "test.jsonl", [{"text": "red green", "domain": "e"}])]
    assert overlap_matrix(corpus, files, workers=1, min_documents=1).coverage == ((1.0,),)
    corpus.opt_out(document.id for document in corpus.documents() if document.text == "red green")
    assert overlap_matrix(corpus, files, workers=1, min_documents=1).coverage == ((0.0,),)


def test_a_record_without_a_domain_belongs_to_its_file(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, [{"id": "1", "text": "red", "domain": "t", "license": "MIT"}])
    files = [write_lines(tmp_path / "news.test.jsonl.gz", [{"text": "red"}, {"text": "blue", "domain": ""}])]
    (tmp_path / "letter.txt").write_text("red")
    found = overlap_matrix(corpus, [*files, *files, tmp_path / "letter.txt"], workers=1, min_documents=1)
    assert found.columns == ("letter", "news")
    assert found.column_samples[1].documents == 2


def test_a_domain_without_ngrams_is_told_apart_from_one_without_overlap(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, [{"id": "1", "text": "red", "domain": "t", "license": "MIT"}])
    records = [{"text": "the", "domain": "a"}, {"text": "red blue", "domain": "b"}, {"text": "sky", "domain": "c"}]
    found = overlap_matrix(corpus, [write_lines(tmp_path / "test.jsonl", records)], workers=1, min_documents=1)
    plain = found.as_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["ngrams"] == {"rows": {"t": 1}, "columns": {"a": 0, "b": 3, "c": 1}}
    assert plain["coverage"] == [[0, 1 / 3, 0]]
    assert plain["maximum"]["a"] == plain["maximum"]["c"] == {"row": None, "coverage": 0}
    assert plain["maximum"]["b"] == {"row": "t", "coverage": 1 / 3}
    assert (plain["mean_maximum"], plain["std_maximum"]) == pytest.approx((1 / 6, 1 / 6))
    assert plain["settings"]["tiers"] == ["pd", "sw", "by"]


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "input-empty"), (b"{}\n", "field-missing"), (b"{\n", "json-invalid"), (b"\xff\n", "utf8-invalid")],
)
def test_an_evaluation_file_that_cannot_be_read_is_an_error(tmp_path: Path, content: bytes, code: str) -> None:
    corpus = make_corpus(tmp_path, [{"id": "1", "text": "red", "domain": "t", "license": "MIT"}])
    (tmp_path / "test.jsonl").write_bytes(content)
    with pytest.raises(SiloError) as caught:
        overlap_matrix(corpus, [tmp_path / "test.jsonl"], workers=1)
    assert caught.value.code == code


def test_a_missing_evaluation_file_and_senseless_settings_are_errors(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, [{"id": "1", "text": "red", "domain": "t", "license": "MIT"}])
    with pytest.raises(SiloError) as caught:
        overlap_matrix(corpus, [tmp_path / "none.jsonl"], workers=1)
    assert caught.value.code == "input-missing"
    for words, documents in ((0, 3), (10, 0)):
        with pytest.raises(SiloError) as caught:
            overlap_matrix(corpus, [tmp_path / "train.jsonl"], sample_tokens=words, min_documents=documents)
        assert caught.value.code == "recipe-value"


def test_stopwords_are_words_and_given_once() -> None:
    words = stopwords()
    assert len(words) == len(set(words)) > 150
    assert all(re.fullmatch("[a-z]+", word) for word in words)


def test_the_heat_map_is_a_picture_and_always_the_same(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, [{"id": "1", "text": "red", "domain": "$t_^$", "license": "MIT"}])
    records = [{"text": "red blue", "domain": "a" * 99}, {"text": "the", "domain": "empty"}]
    found = overlap_matrix(corpus, [write_lines(tmp_path / "test.jsonl", records)], workers=1, min_documents=1)
    for suffix, start in ((".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<?xml")):
        first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
        plot_overlap(found, first)
        plot_overlap(found, second)
        assert first.read_bytes().startswith(start)
        assert first.read_bytes() == second.read_bytes()
