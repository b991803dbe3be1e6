"""RIC: which blocks the variants read, how long they are, and where in a document they lie."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from silo.inference.context import InContext, RicContext
from silo.inference.predict import open_predictor
from silo.inference.settings import Ric
from silo.lm.encode import DocumentEncoder
from silo.lm.model import LanguageModel, save_model
from silo.lm.network import Preset, make_network
from silo.lm.windows import Window
from silo.pairing import create_store
from tests.byte_tokenizer import write_byte_tokenizer
from tests.conftest import words
from tests.inference.world import ids_of, make_model
from tests.store.small import SmallEncoder, document, small_store

CONTEXT = 64
ROOM = CONTEXT // 2
LONG = f"{words(1, 60)} {'plain words, ' * 3}the rare zebra drinks{' and some more of it' * 2} {words(2, 60)}"
OTHER = f"{words(3, 40)} one more zebra {words(4, 40)}"
QUERY = "rare zebra"


@pytest.fixture(scope="module", params=[8, 0, 256], ids=["short passages", "passages as usual", "long passages"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ric")
    store = create_store(
        root / "store", make_model(root), searches=("bm25",), passage_tokens=request.param, bucket_bytes=2000
    )
    store.add([document("long", LONG, domain="a"), document("other", OTHER), document("none", words(5, 50))])
    store.close()
    return root


def find(place: Path, ric: Ric, query: str = QUERY) -> list[tuple[str, InContext]]:
    """What is put before the text, as text too."""
    predictor = open_predictor(place / "model", [place / "store"], method="ric")
    provider = RicContext(CONTEXT, ric, predictor.tokenizer)
    ids = ids_of(query).astype(np.int64)
    with predictor.reading() as retriever:
        items = provider.find(ids, Window(0, len(ids), len(ids) + 1), retriever)
    assert all(len(item.tokens) <= ROOM + 1 for item in items)
    return [(predictor.tokenizer.decode(item.tokens.astype(np.uint32)), item) for item in items]


def test_basic_fills_the_room_from_the_document_of_the_best_passage(place: Path) -> None:
    ((shown, item),) = find(place, Ric())
    assert shown in LONG and len(shown) == ROOM
    assert "zebra" in shown
    ((_, passage),) = item.passages
    assert LONG[passage.first : passage.end] == shown, "the passage says where the block lies"


def test_concat_next_is_half_a_block_and_what_follows(place: Path) -> None:
    ((shown, _),) = find(place, Ric("concat-next"))
    assert shown in LONG and len(shown) == ROOM
    assert "zebra" in shown[: ROOM // 2] or "rare" in shown[: ROOM // 2], "the first half was found"
    ((basic, _),) = find(place, Ric())
    assert shown != basic


def test_concat_reads_several_shorter_blocks_the_best_last(place: Path) -> None:
    ((shown, item),) = find(place, Ric("concat", 2))
    first, last = shown[: ROOM // 2], shown[ROOM // 2 :]
    assert first in OTHER and "zebra" in first, "retrieved as a block of this length, not cut from a longer one"
    assert last in LONG and "zebra" in last
    assert len(item.passages) == 2 and item.passages[0][1].score >= item.passages[1][1].score


def test_blocks_do_not_overlap(place: Path) -> None:
    ((_, item),) = find(place, Ric("concat", 4), "the rare zebra drinks plain words and some more of it")
    spans = sorted((passage.document, passage.first, passage.end) for _, passage in item.passages)
    assert all(end - first <= ROOM // 4 for _, first, end in spans)
    assert all(one[0] != other[0] or one[2] <= other[1] for one, other in pairwise(spans)), "no text twice"


def test_an_ensemble_reads_a_whole_block_each(place: Path) -> None:
    items = find(place, Ric("ensemble", 2))
    assert [len(shown) for shown, _ in items] == [ROOM, ROOM]
    assert items[0][0] in LONG and items[1][0] in OTHER


def test_a_block_at_the_end_of_a_document_reaches_back(place: Path, tmp_path: Path) -> None:
    del place
    root = make_model(tmp_path).parent
    store = create_store(root / "store", root / "model", searches=("bm25",), passage_tokens=16)
    store.add([document("end", f"{words(1, 30)} zebra")])
    store.close()
    ((shown, _),) = find(root, Ric())
    assert shown.endswith("zebra") and len(shown) == ROOM


@pytest.mark.parametrize(("context", "length"), [(64, 32), (1500, 750), (2048, 1024), (32_768, 1024)])
def test_passages_are_half_of_the_context_and_at_most_those_of_the_paper(
    tmp_path: Path, context: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SmallEncoder, "context", context)
    config = small_store(tmp_path / "store", passage_tokens=0).config
    assert (config.passage_tokens, config.passage_stride) == (length, length // 2)


def test_a_store_knows_the_whole_context_of_its_model(tmp_path: Path) -> None:
    shape = Preset("long", 32, 1, 2, 64, vocabulary=257, context=2048, tied=True)
    network = make_network(shape, vocabulary=257, begin=256, seed=1)
    save_model(network, write_byte_tokenizer(tmp_path / "tokenizer"), tmp_path / "model", {"origin": "test"})
    model = LanguageModel.open(tmp_path / "model")
    assert DocumentEncoder(model).context == 2048
    assert RicContext(model.context, Ric(), model.tokenizer).room == 1024
