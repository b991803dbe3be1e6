"""The guard: no output shares more tokens in a row with a guarded document than it may, whatever one tries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.inference.asking.choose import Sampling
from silo.inference.gates import Gate
from silo.inference.generate import GenerateOptions, generate
from silo.inference.guard import Guard
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Ric, Settings
from silo.pairing import create_store
from silo.records import UNJUDGED, UNLIMITED, Document
from silo.store.policy import EVERYTHING, Policy
from silo.store.selector import Selector
from tests.inference.world import TEXTS, documents

LAW = TEXTS["law"]


def quotable(name: str, text: str, quote: int) -> Document:
    """A document of which so many tokens may be quoted."""
    base = next(item for item in documents() if item.external_id == "law")
    named = replace(base, id=f"{count_of(name):032x}", external_id=name, text=text, owner=name)
    if quote == UNLIMITED:  # a right that only a licence gives
        return replace(named, license="MIT", evidence=(), rights=UNJUDGED)
    return replace(named, rights=replace(base.rights, quote=quote))


_numbers: dict[str, int] = {}


def count_of(name: str) -> int:
    return _numbers.setdefault(name, len(_numbers) + 1)


def opened(
    place: Path, stores: list[Path], method: str = "knn+ngram", *, policy: Policy = EVERYTHING, ric: str = "basic"
) -> Predictor:
    stubborn = Gate.constant(0.9)
    chosen = Settings(k=20, tau=20.0, knn=stubborn, ngram=stubborn, ric=Ric(variant=ric))
    return open_predictor(place / "model", stores, method=method, settings=chosen, policy=policy)


def make(
    root: Path, place: Path, contents: list[Document], searches: tuple[str, ...] = ("knn", "ngram", "bm25")
) -> Path:
    store = create_store(root, place / "model", searches=searches, passage_tokens=16, bucket_bytes=500)
    if contents:
        store.add(contents)
    store.close()
    return root


def written(predictor: Predictor, prompt: str, guard: int | None, tokens: int = 60, **options: object) -> bytes:
    """Prompt and output, a byte being a token of this tokenizer."""
    wish = GenerateOptions(tokens, guard=Guard(guard) if guard else None, **options)  # type: ignore[arg-type]
    steps = generate(predictor, prompt, wish)
    return prompt.encode() + bytes(step.token for step in steps if step.token >= 0)


def longest_run(prompt: str, whole: bytes, document: str) -> int:
    """By brute force: the longest stretch of the document that ends in the output, prompts included."""
    held = document.encode()
    ends = range(len(prompt.encode()) + 1, len(whole) + 1)
    return max((size for end in ends for size in range(1, end + 1) if whole[end - size : end] in held), default=0)


@dataclass(frozen=True)
class Held:
    """A document of the property test."""

    text: str
    quote: int
    store: int


TEXT = st.text("ab ", min_size=1, max_size=60)
HELD = st.builds(Held, TEXT, st.sampled_from([0, 1, 2, 3, 7, 50, UNLIMITED]), st.integers(0, 2))
POLICIES = st.sampled_from(["", "tier in []", 'owner != "0"', 'owner == "1"'])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


_runs = count()


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    held=st.lists(HELD, min_size=1, max_size=6),
    limit=st.integers(1, 9),
    inside=st.integers(0, 40),
    before=st.text("ab ", max_size=10),
    method=st.sampled_from(["lm", "ngram", "ric", "ngram+ric"]),
    ric=st.sampled_from(["basic", "concat", "concat-next", "ensemble"]),
    policy=POLICIES,
    sampling=st.builds(
        Sampling, st.sampled_from([0.0, 0.7, 1.5]), st.sampled_from([0, 3]), st.sampled_from([1.0, 0.8]), st.just(1)
    ),
    stop=st.lists(st.text("ab ", min_size=1, max_size=4), max_size=2),
)
def test_no_output_shares_more_with_a_document_than_guard_and_right_allow(
    place: Path,
    scratch: Path,
    held: list[Held],
    limit: int,
    inside: int,
    before: str,
    method: str,
    ric: str,
    policy: str,
    sampling: Sampling,
    stop: list[str],
) -> None:
    root = scratch / str(next(_runs))
    stores = []
    for number in range(3):
        own = [quotable(str(at), item.text, item.quote) for at, item in enumerate(held) if item.store == number]
        stores.append(make(root / str(number), place, own, ("ngram", "bm25")))
    predictor = opened(place, stores, method, policy=Policy.parse(policy), ric=ric)
    prompt = before + held[0].text[inside:][:30]
    # 70 tokens: past the 64 that the network sees
    whole = written(predictor, prompt, limit, 70, sampling=sampling, stop=tuple(stop))
    for item in held:
        if item.quote < UNLIMITED:
            assert longest_run(prompt, whole, item.text) <= max(1, min(limit, item.quote)), item


def test_without_the_guard_a_document_is_repeated(place: Path) -> None:
    whole = written(opened(place, [place / "store"]), "The licensee shall not", None, 30)
    assert whole[:40].decode() in LAW


@pytest.mark.parametrize(("guard", "quote"), [(8, 50), (50, 8), (5, 0), (1, 50), (7, 7)])
def test_the_stricter_of_guard_and_right_counts(place: Path, tmp_path: Path, guard: int, quote: int) -> None:
    store = make(tmp_path / "s", place, [quotable("law", LAW, quote)])
    allowed = max(1, min(guard, quote))
    prompt = LAW[: min(4, allowed)]
    assert longest_run(prompt, written(opened(place, [store]), prompt, guard), LAW) == allowed


def test_text_that_may_be_quoted_without_limit_is_not_guarded(place: Path, tmp_path: Path) -> None:
    store = make(tmp_path / "s", place, [quotable("law", LAW, UNLIMITED)])
    whole = written(opened(place, [store]), LAW[:8], 4, 30)
    assert whole.decode() in LAW


@pytest.mark.parametrize(("blind", "method"), [("bm25", "ric"), ("knn", "knn"), ("knn", "ngram"), ("bm25", "lm")])
def test_a_store_that_cannot_be_guarded_is_refused_before_the_first_token(
    place: Path, tmp_path: Path, blind: str, method: str
) -> None:
    kept = [make(tmp_path / "a", place, [quotable("tea", TEXTS["tea"], 50)])]
    kept.append(make(tmp_path / "b", place, [quotable("law", LAW, 50)], (blind,)))
    for stores in (kept, kept[::-1]):
        predictor = opened(place, stores, method)
        with pytest.raises(SiloError) as caught:
            generate(predictor, LAW[:20], GenerateOptions(guard=Guard(5)))
        assert caught.value.code == "search-missing" and str(tmp_path / "b") in str(caught.value)


def test_a_guard_without_a_store_is_refused(place: Path) -> None:
    with pytest.raises(SiloError, match="needs a store"):
        generate(opened(place, [], "lm"), "The", GenerateOptions(guard=Guard(5)))


def test_a_policy_that_hides_a_document_leaves_it_guarded(place: Path, tmp_path: Path) -> None:
    """A copy under a free licence may be read; the words stay those of the guarded document."""
    copies = [quotable("guarded", LAW, 6), quotable("free", LAW, UNLIMITED)]
    store = make(tmp_path / "s", place, copies)
    predictor = opened(place, [store], policy=Policy.parse('owner == "free"'))
    assert longest_run(LAW[:4], written(predictor, LAW[:4], 20), LAW) == 6


def test_a_document_erased_meanwhile_is_gone_for_the_guard_too(place: Path, tmp_path: Path) -> None:
    """The store has forgotten it: what else holds the words may say them from the next token on."""
    copies = [quotable("guarded", LAW, 6), quotable("free", LAW, UNLIMITED)]
    store = make(tmp_path / "s", place, copies)
    predictor = opened(place, [store])
    steps = generate(predictor, LAW[:4], GenerateOptions(60, guard=Guard(20)))
    first = bytes(next(steps).token for _ in range(10))
    assert longest_run(LAW[:4], LAW[:4].encode() + first, LAW) == 6
    predictor.stores[0].erase(Selector(owner="guarded"))
    whole = LAW[:4].encode() + first + bytes(step.token for step in steps if step.token >= 0)
    assert longest_run(LAW[:4], whole, LAW) > 6


def test_neighbours_under_a_guard_are_named_without_their_text(place: Path) -> None:
    predictor = opened(place, [place / "store"], "knn")
    for guard in (None, Guard(5)):
        steps = list(generate(predictor, LAW[:20], GenerateOptions(8, guard=guard, neighbours=3)))
        near = [item for step in steps for item in step.neighbours]
        assert near and all(item.document for item in near)
        assert any(item.left + item.continuation for item in near) == (guard is None)
