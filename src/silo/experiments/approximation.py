"""What small keys and short searches cost: every codec and number of probes against exact search over the float keys.

Also what exact erasure costs (a codec of permitted text against one learned from the stored keys, which no erasure
could undo), and which state of the model is the better key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.evaluation.figures import DomainFigures, DomainSums, sum_rows
from silo.evaluation.fitting import solve_lambda
from silo.evaluation.scoring import PLAIN
from silo.evaluation.texts import DomainText
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.measure import (
    NEIGHBOURS,
    Floats,
    Sample,
    as_json,
    known_domains,
    mean_ratio,
    ratio,
    read_text,
)
from silo.experiments.harness.result import ACCENTS, Result, Table, draw_estimates, figure_png, show_estimate
from silo.files import fingerprint
from silo.inference.mix import token_mass
from silo.lm.codec import learn_from, sample_keys
from silo.lm.encode import DocumentEncoder
from silo.lm.engine.decoder import DecodingModel
from silo.lm.manifest import Key
from silo.lm.reading import Row
from silo.lm.scoring import score_rows
from silo.lm.windows import Windows
from silo.search.knn.codec import Codec
from silo.search.knn.index import KeyRows, KnnIndex
from silo.store.view import PROBES, ROWS_PER_NEIGHBOUR
from silo.text.tokenizer import Ids

EXACT = "exact"
_TAUS = 2.0 ** np.arange(1, -7, -1)
"""Of the median distance."""
_BLOCK = 128

DIFFERENCES = """Stores of 200,000 tokens instead of 51 million, on several domains; tau and lambda come from validation
text. Our keys have 256 numbers, not 2,048, so that a code of 64 bytes is the paper's 16-fold quantisation; a code is
compared with the float key that asks. The paper learns its codes from the stored keys; ours come from permitted text,
and the lines `learned from the store` show what that costs. Recall is against exact search."""

Keys = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Search:
    """A code of so many bytes, learned from `permitted` text or from the `store`, and lists probed (0: every list)."""

    name: str
    code_bytes: int
    probes: int = PROBES
    learned_from: str = "permitted"

    def __post_init__(self) -> None:
        if self.learned_from not in ("permitted", "store"):
            raise SiloError("recipe-value", f"learned_from is '{self.learned_from}', not permitted or store")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The first of `searches` is the usual one."""

    question: str
    paper: str
    model: str
    domains: tuple[str, ...]
    searches: tuple[Search, ...]
    kinds: tuple[str, ...] = ("ffn", "final")
    store_tokens: int = 200_000
    neighbours: int = NEIGHBOURS
    sample: Sample = field(default_factory=Sample)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows of the store and their distances [queries, k], nearest first."""

    rows: Ints
    distances: Keys


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Of every token of a text but the first: the token, its probability under the LM, and the key before it."""

    tokens: Ints
    lm: Floats
    keys: Keys


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """A kind of key on a domain. `recall` has for each search the shares of true neighbours, added up by document."""

    figures: DomainFigures
    recall: dict[str, Floats]
    key_bytes: dict[str, int]


def run(lab: Lab, name: str) -> Result:
    """Every kind of key on every domain, with every search."""
    recipe = lab.recipe(name, Recipe)
    domains = known_domains(lab, recipe.domains)
    measured = {
        kind: [_measure(lab, recipe, domain, _kind(kind), seed) for seed, domain in enumerate(domains)]
        for kind in recipe.kinds
    }
    return Result(
        name,
        recipe.question,
        _answer(recipe, measured),
        recipe.paper,
        DIFFERENCES,
        tuple(table for kind, items in measured.items() for table in _tables(kind, items)),
        {"recipe": asdict(recipe), "kinds": {kind: _facts(items) for kind, items in measured.items()}},
        _plot(measured),
    )


def _kind(name: str) -> Key:
    match name:
        case "final":
            return "final"
        case "ffn":
            return "ffn"
    raise SiloError("recipe-value", f"there is no kind of key '{name}': choose final or ffn")


def _measure(lab: Lab, recipe: Recipe, domain: str, kind: Key, seed: int) -> Measured:
    key = {
        "model": lab.fingerprint(recipe.model),
        "codec": asdict(lab.codec_settings),
        "searches": [asdict(search) for search in recipe.searches],
        "kind": kind,
        "sizes": [recipe.store_tokens, recipe.neighbours],
        "sample": asdict(recipe.sample),
        "domain": domain,
    }
    cell = lab.cell("approximation", key, lambda: _score(lab, recipe, domain, kind))
    figures = DomainFigures(DomainSums.from_json(cell["sums"]), seed=seed)
    return Measured(figures, {row: np.array(shares) for row, shares in cell["recall"].items()}, cell["key_bytes"])


def _score(lab: Lab, recipe: Recipe, domain: str, kind: Key) -> dict[str, Any]:
    place = lab.model(recipe.model)
    model = DecodingModel.open(place)
    documents = [document.text for document in lab.documents(domain, recipe.store_tokens, place)]
    keys, values = _stored(DocumentEncoder(model.network, kind), documents)
    test = read_text(lab, domain, "test", model, recipe.sample)
    validation = read_text(lab, domain, "validation", model, recipe.sample)
    asked = [_ask(model, kind, text.stream.ids) for text in (validation, test)]
    count = min(recipe.neighbours, len(keys))
    truth = [_search_exactly(keys, one.keys, count) for one in asked]
    rows, recall = {PLAIN: asked[1].lm}, {}

    def add(name: str, found: Sequence[Found]) -> None:
        rows[name] = _mix(values, asked, found, validation.counted[1:])
        recall[name] = _sum_by_document(test, _shared(found[1], truth[1]))

    add(EXACT, truth)
    sample = cache(lambda: sample_keys(place, lab.corpus(), key=kind, advance=lab.advance))
    index_of = cache(lambda search: _index(_codec(lab, recipe.model, kind, search, keys, sample), keys))
    for search in recipe.searches:
        index = index_of(replace(search, name="", probes=0))
        add(search.name, [_search(index, one.keys, count, search.probes) for one in asked])
    return {
        "sums": sum_rows(test, {name: np.concatenate([[1.0], row]) for name, row in rows.items()}).as_json(),
        "recall": recall,
        "key_bytes": {EXACT: 4 * keys.shape[1], **{search.name: search.code_bytes for search in recipe.searches}},
    }


def _sum_by_document(text: DomainText, values: Floats) -> list[float]:
    """Values of all tokens but the first, added up where they are scored."""
    counted = text.counted[1:]
    sums = np.bincount(text.documents[1:][counted], weights=values[counted], minlength=len(text.labels))
    return [float(value) for value in sums]


def _stored(encoder: DocumentEncoder, texts: Sequence[str]) -> tuple[Keys, Ints]:
    """The keys of some documents, and the tokens that follow them."""
    begin = np.array([encoder.tokenizer.begin], dtype=np.uint32)
    ids = [np.concatenate([begin, tokens]) for tokens in encoder.tokenizer.encode(list(texts))]
    return np.concatenate(list(encoder.keys(ids))), np.concatenate([tokens[1:] for tokens in ids]).astype(np.int64)


def _ask(model: DecodingModel, kind: Key, ids: Ids) -> Asked:
    """One pass over a text, in the windows in which texts are scored."""
    text, windows = ids.astype(np.int64), Windows().within(model.context)
    logs, keys = [], []
    for window in windows.over(len(text)):
        row = Row(text[window.start : window.until], window.targets.start - window.start)
        (read,) = score_rows(model.network, [row], windows.length, key=kind)
        logs.append(read.logs)
        keys.append(read.keys)
    return Asked(text[1:], np.exp(np.concatenate(logs)), np.concatenate(keys))


def _codec(lab: Lab, model: str, kind: Key, search: Search, stored: Keys, sample: Callable[[], Keys]) -> Codec:
    """The codec of a search; those of permitted text are learned once."""
    settings = replace(lab.codec_settings, code_bytes=search.code_bytes)
    if search.learned_from == "store":
        return learn_from(stored, settings)
    place = lab.folder / "codecs" / f"{model}-{kind}-{fingerprint(asdict(settings))[:16]}"
    if not place.exists():
        lab.talk(f"codec of {search.code_bytes} bytes for {kind} keys: learn")
        place.parent.mkdir(parents=True, exist_ok=True)
        learn_from(sample(), settings, advance=lab.advance).save(place)
    return Codec.open(place)


def _index(codec: Codec, keys: Keys) -> KnnIndex:
    encoded = codec.encode(keys)
    order = np.argsort(encoded.lists, kind="stable")
    offsets = np.searchsorted(encoded.lists[order], np.arange(codec.settings.lists + 1)).astype(np.uint32)
    return KnnIndex(codec, [KeyRows(offsets, np.ascontiguousarray(encoded.codes[order]), order.astype(np.uint32))])


def _search(index: KnnIndex, queries: Keys, count: int, probes: int) -> Found:
    """As stores search."""
    lists = index.tables.codec.settings.lists
    answer = index.search(queries, count, probes=probes or lists, rows_wanted=ROWS_PER_NEIGHBOUR * count)
    return Found(answer.places.astype(np.int64), answer.distances)


def _search_exactly(keys: Keys, queries: Keys, count: int) -> Found:
    """By comparing every query with every key, in float32."""
    squares = np.einsum("ij,ij->i", keys, keys)
    rows, distances = np.empty((len(queries), count), np.int64), np.empty((len(queries), count), np.float32)
    for first in range(0, len(queries), _BLOCK):
        block = queries[first : first + _BLOCK]
        every = squares[None] - 2 * block @ keys.T + np.einsum("ij,ij->i", block, block)[:, None]
        chosen = np.argpartition(every, count - 1, axis=1)[:, :count]
        near = np.take_along_axis(every, chosen, axis=1)
        order = np.argsort(near, axis=1)
        rows[first : first + _BLOCK] = np.take_along_axis(chosen, order, axis=1)
        distances[first : first + _BLOCK] = np.maximum(np.take_along_axis(near, order, axis=1), 0)
    return Found(rows, distances)


def _mix(values: Ints, asked: Sequence[Asked], found: Sequence[Found], counted: NDArray[np.bool_]) -> Floats:
    """The probability of every test token, with tau and lambda of the validation text, whose tokens come first."""
    known = found[0].distances[np.isfinite(found[0].distances)]
    taus = (float(np.median(known)) or 1.0) * _TAUS

    def mass(which: int, tau: float) -> Floats:
        return token_mass(values[found[which].rows], found[which].distances, tau, asked[which].tokens)

    tried = np.stack([mass(0, float(tau)) for tau in taus], axis=1)
    weights, means = solve_lambda(asked[0].lm[counted], tried[counted])
    best = int(means.argmax())
    mixed: Floats = (1 - weights[best]) * asked[1].lm + weights[best] * mass(1, float(taus[best]))
    return mixed


def _shared(found: Found, truth: Found) -> Floats:
    """Of every query the share of its true neighbours that were found."""
    shared = [len(np.intersect1d(one, other)) for one, other in zip(found.rows, truth.rows, strict=True)]
    shares: Floats = np.array(shared) / truth.rows.shape[1]
    return shares


def _against(items: Sequence[Measured], row: str, others: Sequence[Measured], other: str) -> dict[str, float | None]:
    """The mean ratio of two rows."""
    pairs = zip(items, others, strict=True)
    return as_json(mean_ratio([ratio(one.figures, row, base.figures, other) for one, base in pairs]))


def _recall(items: Sequence[Measured], row: str) -> dict[str, float | None]:
    return as_json(np.mean([item.figures.mean(item.recall[row]) for item in items], axis=0))


def _answer(recipe: Recipe, measured: dict[str, list[Measured]]) -> str:
    usual, (kind, items) = recipe.searches[0], next(iter(measured.items()))
    answer = (
        f"{usual.name} finds {show_estimate(_recall(items, usual.name), 1, 100)} % of the neighbours of exact search "
        f"and has {show_estimate(_against(items, usual.name, items, EXACT), 3)} times its perplexity, "
        f"with keys of {items[0].key_bytes[usual.name]} bytes instead of {items[0].key_bytes[EXACT]}"
    )
    for other, others in list(measured.items())[1:]:
        compared = show_estimate(_against(items, EXACT, others, EXACT), 3)
        answer += f"; {kind} keys have {compared} times the perplexity of {other} keys"
    return answer + "."


def _tables(kind: str, items: Sequence[Measured]) -> list[Table]:
    rows = [row for row in items[0].figures.rows if row != PLAIN]
    whole = items[0].key_bytes[EXACT]
    lines = [
        (
            row,
            str(items[0].key_bytes[row]),
            f"{items[0].key_bytes[row] / whole:.4f}",
            show_estimate(_recall(items, row), 3),
            show_estimate(_against(items, row, items, EXACT), 3),
        )
        for row in rows
    ]
    by_domain = [
        (row, *(show_estimate(as_json(item.figures.perplexity(row))) for item in items))
        for row in items[0].figures.rows
    ]
    head = ("search", "bytes of a key", "of the float key's", "recall", "perplexity / that of exact search")
    domains = [item.figures.sums.domain for item in items]
    return [
        Table(f"Keys of the kind {kind}: mean of the domains (95 % interval)", head, tuple(lines)),
        Table(f"Perplexity of kNN-LM on test text, keys of the kind {kind}", ("search", *domains), tuple(by_domain)),
    ]


def _facts(items: Sequence[Measured]) -> dict[str, Any]:
    return {
        item.figures.sums.domain: {
            "documents": len(item.figures.sums.labels),
            "tokens": int(item.figures.sums.tokens.sum()),
            "perplexity": {row: as_json(item.figures.perplexity(row)) for row in item.figures.rows},
            "recall": {row: as_json(item.figures.mean(sums)) for row, sums in item.recall.items()},
            "key_bytes": item.key_bytes,
        }
        for item in items
    }


def _plot(measured: dict[str, list[Measured]]) -> bytes:
    """Perplexity against exact search, by search; a colour for each kind of key."""
    from matplotlib.figure import Figure

    rows = [row for row in next(iter(measured.values()))[0].figures.rows if row not in (PLAIN, EXACT)]
    figure = Figure(figsize=(11, 1.6 + 0.4 * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for at, (kind, items) in enumerate(measured.items()):
        places = [place + 0.3 * (at + 0.5 - len(measured) / 2) for place in range(len(rows))]
        style = {"label": f"{kind} keys", "color": ACCENTS[at]}
        draw_estimates(left, places, [_against(items, row, items, EXACT) for row in rows], across=True, **style)
        draw_estimates(right, places, [_recall(items, row) for row in rows], across=True, **style)
    left.set_yticks(range(len(rows)), rows)
    left.invert_yaxis()
    left.axvline(1.0, color="#999999", linewidth=0.8)
    left.set_xlabel("perplexity / that of exact search")
    right.set_xlabel("recall against exact search")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    right.legend(frameon=False, fontsize=8)
    return figure_png(figure)
