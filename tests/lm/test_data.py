"""Packed sequences hold every permitted token once per epoch, in an order that a seed fixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.corpus.corpus import Corpus
from silo.lm.firewall import Permit
from silo.lm.training.data import Stream, _apportion, make_plan, prepare_streams
from silo.records import document_id
from silo.text.sketch import Sketches
from silo.text.tokenizer import ByteTokenizer
from tests.conftest import build_from, record, words, write_jsonl


def _quiet(*_: object) -> None:
    return


def _stream(tokens: int, domain: str = "d", document: int = 10) -> Stream:
    starts = np.arange(0, tokens, document, dtype=np.uint64)
    from silo.lm.firewall import SEEN

    rows = np.zeros(len(starts), dtype=SEEN)
    for at in range(len(rows)):
        rows[at] = (at.to_bytes(16, "big"), bytes(16), 0)
    return Stream(domain, np.arange(tokens, dtype=np.uint32), starts, rows, Sketches.of([]))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    records = [record(f"p{n}", words(n, 30), license="CC0-1.0", domain="law") for n in range(10)]
    records += [record(f"s{n}", words(n + 50, 30), domain="code") for n in range(5)]
    records += [record(f"r{n}", words(n + 90, 30), license="", domain="mail") for n in range(5)]
    build_from([write_jsonl(tmp_path / "in.jsonl", records)], tmp_path / "corpus")
    return Corpus.open(tmp_path / "corpus")


def test_streams_hold_permitted_documents_only_each_with_its_beginning(corpus: Corpus, tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    streams = prepare_streams(corpus, Permit.of(["pd", "sw"]), "", tmp_path / "tokens", advance=_quiet)
    assert sorted(streams) == ["code", "law"]
    law = streams["law"]
    assert (law.tokens[law.starts] == tokenizer.begin).all()
    assert int((law.tokens == tokenizer.begin).sum()) == 10
    texts = {document.text for document in corpus.documents(tiers=["pd"])}  # type: ignore[list-item]
    pieces = np.split(np.asarray(law.tokens, dtype=np.uint32), law.starts[1:].astype(np.int64))
    assert {tokenizer.decode(piece) for piece in pieces} == texts


def test_opted_out_documents_are_left_out(corpus: Corpus, tmp_path: Path) -> None:
    corpus.opt_out([document_id("test", "p3")])
    streams = prepare_streams(corpus, Permit.of(["pd"]), "", tmp_path / "tokens", advance=_quiet)
    assert len(streams["law"].documents) == 9
    assert document_id("test", "p3") not in {row["id"].tobytes().hex() for row in streams["law"].documents}


@given(st.integers(1, 2000), st.integers(1, 60), st.integers(0, 10**6))
def test_every_sequence_is_visited_once_before_any_is_visited_twice(tokens: int, length: int, seed: int) -> None:
    stream = _stream(tokens)
    size = stream.sequences(length)
    if not size:
        return
    plan = make_plan({"d": stream}, sequences=2 * size + 1, length=length, weights={}, seed=seed)
    assert sorted(plan.number_of[:size].tolist()) == list(range(size))
    assert sorted(plan.number_of[size : 2 * size].tolist()) == list(range(size))


def test_weights_multiply_how_often_a_domain_is_seen() -> None:
    streams = {"large": _stream(9001, "large"), "small": _stream(1001, "small")}
    plan = make_plan(streams, sequences=1200, length=10, weights={"small": 3.0, "large": 1.0}, seed=1)
    share = float((plan.domain_of == plan.domains.index("small")).mean())
    assert share == pytest.approx(300 / 1200)


def test_balance_levels_the_sizes_of_domains() -> None:
    streams = {"large": _stream(9001, "large"), "small": _stream(1001, "small")}
    for balance, share in ((1.0, 0.1), (0.5, 0.25), (0.0, 0.5)):
        plan = make_plan(streams, sequences=1000, length=10, weights={}, seed=1, balance=balance)
        assert plan.tokens_by_domain(len(plan), 10)["small"] == pytest.approx(10_000 * share, abs=20)


def test_a_plan_depends_on_its_seed_alone() -> None:
    streams = {"d": _stream(5000)}
    plans = [make_plan(streams, sequences=50, length=20, weights={}, seed=seed) for seed in (1, 1, 2)]
    assert plans[0].number_of.tolist() == plans[1].number_of.tolist() != plans[2].number_of.tolist()


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8), st.integers(0, 500))
def test_shares_add_up(raw: list[float], total: int) -> None:
    shares = np.array(raw) / sum(raw)
    counts = _apportion(shares, total)
    assert counts.sum() == total
    assert (np.abs(counts - shares * total) <= 1).all()


def test_visited_documents_are_exactly_those_whose_tokens_were_used() -> None:
    stream = _stream(100, document=10)
    plan = make_plan({"d": stream}, sequences=9, length=10, weights={}, seed=0)
    for upto in range(10):
        naive = set()
        for number in plan.number_of[:upto].tolist():
            naive |= {token // 10 for token in range(number * 10, number * 10 + 11)}
        found = {
            int.from_bytes(bytes.fromhex(name), "big") for name, _ in plan.visited_documents({"d": stream}, upto, 10)
        }
        assert found == naive
