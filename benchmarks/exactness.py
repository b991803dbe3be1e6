"""What exact erasure costs: a codec that never saw the store against one learned from it; and which key is better.

    python benchmarks/exactness.py [--model silo-home/models/pdsw] [--domains ...] [--tokens 200000]

For each domain and each kind of key (`final`, `ffn`): keys of train text, queries from validation text. Exact search
over float keys, then the codec of the model (learned from permitted text) and one learned from the stored keys, with
the usual probes and with every list. Recall@1024 is against exact search; tau and lambda come from one half of the
queries, the perplexity of the kNN-LM from the other. Writes docs/results/exactness.json and exactness.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from silo.corpus.corpus import Corpus
from silo.evaluation.fitting import solve_lambda
from silo.files import write_json
from silo.inference.mix import token_mass
from silo.lm.codec import learn_codec
from silo.lm.encode import DocumentEncoder
from silo.lm.manifest import CODEC_FOLDER, Key, codec_key
from silo.lm.model import LanguageModel
from silo.search.knn.codec import Codec, CodecSettings, Encoded
from silo.search.knn.index import KeyRows, KnnIndex
from silo.sources.evaluation import read_evaluation
from silo.store.view import PROBES, ROWS_PER_NEIGHBOUR
from silo.text.tokenizer import Ids, Tokenizer
from store import documents

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
DOMAINS = ("clinical_notes", "enron_emails", "imdb_reviews")
K = 1024
Keys = NDArray[np.float32]
Found = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Case:
    """Stored keys with their values, queries with the tokens they should find, and what the LM says of those."""

    keys: Keys
    values: NDArray[np.int64]
    queries: Keys
    tokens: NDArray[np.int64]
    lm: NDArray[np.float64]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "silo-home" / "models" / "pdsw")
    parser.add_argument("--corpus", type=Path, default=ROOT / "silo-home" / "corpora" / "shared-data")
    parser.add_argument("--domains", nargs="+", default=list(DOMAINS))
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=4_000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "exactness")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"model": arguments.model.name, "k": K, "probes": PROBES, "domains": {}}
    model = LanguageModel.open(arguments.model)
    kinds: tuple[Key, ...] = ("final", "ffn")
    codecs = {key: permitted_codec(arguments, key) for key in kinds}
    for domain in arguments.domains:
        result["domains"][domain] = {key: compared(case(model, domain, key, arguments), codecs[key]) for key in kinds}
        print(domain, result["domains"][domain], flush=True)
    write_json(arguments.out.with_suffix(".json"), result)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def permitted_codec(arguments: argparse.Namespace, key: Key) -> Codec:
    """The codec that `silo lm codec --key` learns for the model; the one it has already, if that is of this kind."""
    if (arguments.model / CODEC_FOLDER).is_dir() and codec_key(arguments.model) == key:
        return Codec.open(arguments.model / CODEC_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model"
        shutil.copytree(arguments.model, copy)
        return learn_codec(copy, Corpus.open(arguments.corpus), CodecSettings(), key=key)


def case(model: LanguageModel, domain: str, key: Key, arguments: argparse.Namespace) -> Case:
    encoder, plain = DocumentEncoder(model, key), DocumentEncoder(model)
    stored = encoded([item.text for item in documents([domain], arguments.tokens)], model.tokenizer)
    asked: list[Ids] = []
    for record in read_evaluation(DATA / f"{domain}.validation.jsonl.zst"):
        asked += encoded([record.text], model.tokenizer)
        if sum(map(len, asked)) > arguments.queries:
            break
    tokens = np.concatenate([ids[1:] for ids in asked]).astype(np.int64)[: arguments.queries]
    queries = np.concatenate(list(encoder.keys(asked)))[: arguments.queries]
    states = queries if key == "final" else np.concatenate(list(plain.keys(asked)))[: arguments.queries]
    return Case(
        np.concatenate(list(encoder.keys(stored))),
        np.concatenate([ids[1:] for ids in stored]).astype(np.int64),
        queries,
        tokens,
        probabilities(model, states, tokens),
    )


def encoded(texts: list[str], tokenizer: Tokenizer) -> list[Ids]:
    begin = np.array([tokenizer.begin], dtype=np.uint32)
    return [np.concatenate([begin, ids]) for ids in tokenizer.encode(texts)]


@torch.inference_mode()
def probabilities(model: LanguageModel, states: Keys, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    logits = model.network.get_output_embeddings()(torch.from_numpy(states)).double().softmax(1).numpy()
    found: NDArray[np.float64] = logits[np.arange(len(tokens)), tokens]
    return found


def compared(given: Case, own: Codec) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sample = given.keys[np.sort(rng.permutation(len(given.keys))[: own.samples])]
    careless = Codec.learn(sample, own.settings)
    truth = exact(given)
    found = {"lm": float(np.exp(-np.log(given.lm[1::2]).mean())), "exact": figures(given, truth, truth)}
    for name, codec in (("permitted", own), ("store", careless)):
        rows = rows_of(codec.encode(given.keys), codec.settings.lists)
        search = KnnIndex(codec, [rows])
        for label, probes in ((f"{name}", PROBES), (f"{name}, every list", codec.settings.lists)):
            answer = search.search(given.queries, K, probes=probes, rows_wanted=ROWS_PER_NEIGHBOUR * K)
            found[label] = figures(given, (answer.places.astype(np.int64), answer.distances), truth)
    return found


def rows_of(encoded: Encoded, lists: int) -> KeyRows:
    order = np.argsort(encoded.lists, kind="stable")
    offsets = np.searchsorted(encoded.lists[order], np.arange(lists + 1)).astype(np.uint32)
    return KeyRows(offsets, np.ascontiguousarray(encoded.codes[order]), order.astype(np.uint32))


def exact(given: Case) -> Found:
    squares = np.einsum("ij,ij->i", given.keys, given.keys)
    places = np.empty((len(given.queries), K), dtype=np.int64)
    distances = np.empty((len(given.queries), K), dtype=np.float32)
    for first in range(0, len(given.queries), 256):
        block = given.queries[first : first + 256]
        all_distances = squares[None] - 2 * block @ given.keys.T + np.einsum("ij,ij->i", block, block)[:, None]
        chosen = np.argpartition(all_distances, K, axis=1)[:, :K]
        near = np.take_along_axis(all_distances, chosen, axis=1)
        order = np.argsort(near, axis=1)
        places[first : first + 256] = np.take_along_axis(chosen, order, axis=1)
        distances[first : first + 256] = np.maximum(np.take_along_axis(near, order, axis=1), 0)
    return places, distances


def figures(given: Case, found: Found, truth: Found) -> dict[str, float]:
    """Recall, and the perplexity of the second half with tau and lambda from the first."""
    places, distances = found
    taus = float(np.median(distances[np.isfinite(distances)])) * 2.0 ** np.arange(1, -7, -1)
    mass = np.stack([token_mass(given.values[places], distances, float(tau), given.tokens) for tau in taus], axis=1)
    weights, means = solve_lambda(given.lm[::2], mass[::2])
    best = int(means.argmax())
    mixed = (1 - weights[best]) * given.lm[1::2] + weights[best] * mass[1::2, best]
    shared = [len(np.intersect1d(one, other)) / K for one, other in zip(places, truth[0], strict=True)]
    return {
        "recall": round(float(np.mean(shared)), 4),
        "perplexity": round(float(np.exp(-np.log(mixed).mean())), 3),
        "lambda": round(float(weights[best]), 3),
        "tau": round(float(taus[best]), 3),
    }


def page(result: dict[str, Any]) -> str:
    """One table per kind of key."""
    names = ["exact", "permitted", "permitted, every list", "store", "store, every list"]
    lines = ["# What exactness costs, and which key is better", ""]
    lines += [
        f"Model `{result['model']}`, k {result['k']}, {result['probes']} probes. Cells: kNN-LM perplexity (recall@k)."
    ]
    lines += [
        "`permitted`: the frozen codec, learned from text the model may learn from. `store`: one learned from the"
    ]
    lines += ["stored keys, which no erasure could undo. Made by `benchmarks/exactness.py`.", ""]
    for key in ("final", "ffn"):
        lines += [
            f"## key: {key}",
            "",
            "| domain | lm | " + " | ".join(names) + " |",
            "|---|" + "---|" * (len(names) + 1),
        ]
        for domain, found in result["domains"].items():
            cells = [f"{found[key][name]['perplexity']:.1f} ({found[key][name]['recall']:.3f})" for name in names]
            lines.append(f"| {domain} | {found[key]['lm']:.1f} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
