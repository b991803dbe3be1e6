"""A tiny model with a codec, and a store of a few documents, for the tests of this package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from silo.corpus.corpus import Corpus
from silo.lm.codec import learn_codec
from silo.lm.manifest import Key
from silo.lm.model import save_model
from silo.lm.network import Preset, make_network
from silo.pairing import create_store, open_store
from silo.records import Candidate, Document, Right
from silo.rights import assess
from silo.search.knn.codec import CodecSettings
from silo.sources import judge
from silo.store.store import Store
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import build_from, record, words, write_jsonl

SHAPE = Preset("tiny", 32, 2, 2, 64, vocabulary=257, context=64, tied=True)

TEXTS = {
    "fox": "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps.",
    "dog": "A lazy dog sleeps all day long, and the quick brown fox does not.",
    "sea": "The sea is wide and the sea is deep; the ship sails over the wide sea.",
    "law": "The licensee shall not copy the work, and the licensee shall not sell the work.",
    "tea": "Tea is made with hot water. Hot water is poured over the leaves of tea.",
}
LICENSES = {"fox": "MIT", "dog": "MIT", "sea": "CC-BY-4.0", "law": "", "tea": ""}


def make_model(root: Path, *, seed: int = 1, key: Key = "final") -> Path:
    """A model with random weights and a codec."""
    torch.set_num_threads(1)
    root.mkdir(parents=True, exist_ok=True)
    network = make_network(SHAPE, vocabulary=257, begin=256, seed=seed)
    with torch.no_grad():
        network.model.norm.weight.mul_(5)  # so that it is sure of something
    save_model(network, write_byte_tokenizer(root / "tokenizer"), root / "model", {"origin": "test"})
    records = [record(f"p{n}", words(n, 40), license="CC0-1.0") for n in range(30)]
    build_from([write_jsonl(root / "in.jsonl", records)], root / "corpus")
    learn_codec(root / "model", Corpus.open(root / "corpus"), CodecSettings(lists=16, code_bytes=8), key=key, keys=3000)
    return root / "model"


def documents() -> list[Document]:
    """A document of each text; the owner is the first letter. Nothing of the unlicensed ones may be quoted."""
    return [_document(name, text, LICENSES[name]) for name, text in TEXTS.items()]


def _document(name: str, text: str, license: str) -> Document:
    evidence = (assess(license, where="record"),) if license else ()
    deny = () if license else (Right.quote,)
    return judge(Candidate(name, text, "test", "prose", evidence, owner=name[0]), deny)


def make_store(root: Path, model: Path, contents: list[Document] | None = None) -> Store:
    """A store with all searches; opened anew, as a reader does."""
    store = create_store(root, model, passage_tokens=16, bucket_bytes=2000)
    store.add(documents() if contents is None else contents)
    store.close()
    return open_store(root)


def ids_of(text: str) -> np.ndarray:
    return np.array([256, *text.encode()], dtype=np.uint32)
