"""A store: what goes in can be found, what is erased leaves no trace, and its history never shows."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import is_held
from silo.records import Document, Evidence, Tier
from silo.search.knn.codec import Codec
from silo.search.knn.index import KnnIndex, NearestRows, SearchTables
from silo.store.bucket import MAGIC, Bucket
from silo.store.erasure.receipt import check_receipt, proves, read_receipt
from silo.store.erasure.residue import Traces, scan
from silo.store.erasure.verify import self_test
from silo.store.policy import Policy
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.view import PROBES
from silo.text.normalise import text_hash
from silo.text.tokenizer import ByteTokenizer
from tests.reliability.disk import fail_at, watched
from tests.store.small import SmallEncoder, document, small_codec, small_store, tree

TEXTS = [
    f"Document number {n} speaks of {n * 37} apples, {n} pears and the {n}th winter of the north. " * 3
    for n in range(40)
]
DOCUMENTS = [document(f"d{n}", text, owner=f"owner{n % 4}", domain=f"domain{n % 3}") for n, text in enumerate(TEXTS)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = small_store(tmp_path / "store")
    made.add(DOCUMENTS)
    return made


def _keys(text: str) -> NDArray[np.float32]:
    ids = np.concatenate([[256], np.frombuffer(text.encode(), dtype=np.uint8)]).astype(np.uint32)
    return next(SmallEncoder().keys([ids]))


def _rebuilt(root: Path, documents: list[Document]) -> Store:
    made = small_store(root)
    made.add(documents)
    return made


def test_what_was_added_is_found_by_every_search(store: Store) -> None:
    text = TEXTS[7]
    found = store.search(_keys(text)[20:27], 4)
    assert set(found.documents(0)) <= {item.id for item in DOCUMENTS}
    assert found.values[:, 0].tolist() == list(text.encode()[20:27])
    after = store.continuations([*b"Document number 7 speaks of 2"])
    assert after.length == 29
    assert after.tokens.tolist() == [ord("5")]
    assert set(after.documents()) == {DOCUMENTS[7].id}
    best = store.passages("the 7th winter 259 apples", 1)[0]
    assert best.document == DOCUMENTS[7].id
    assert ByteTokenizer().decode(best.tokens) in text


def test_a_store_that_is_closed_while_it_looks_for_changes_stays_closed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, plain = threading.Event(), Store.refresh
    store.close()

    def refresh(looked_at: Store) -> None:
        if threading.current_thread().name == "silo-store-watch":
            looking.set()
            time.sleep(0.1)  # somebody closes it now
        plain(looked_at)

    monkeypatch.setattr(Store, "refresh", refresh)
    opened = Store.open(store.root)
    assert looking.wait(10)
    opened.close()
    time.sleep(0.2)
    assert not any(map(is_held, store.paths.readers.iterdir()))


def test_the_order_and_number_of_adds_leave_no_mark(store: Store, tmp_path: Path) -> None:
    other = small_store(tmp_path / "other")
    for item in reversed(DOCUMENTS):
        other.add([item])
    assert tree(store.root / "data") == tree(other.root / "data")
    assert store.digest() == other.digest()
    assert len(tree(store.root / "data")) > 5


def test_an_erased_document_leaves_the_bytes_of_a_store_that_never_held_it(store: Store, tmp_path: Path) -> None:
    done = store.erase(Selector(owner="owner1"))
    kept = [item for item in DOCUMENTS if item.owner != "owner1"]
    assert sorted(done.documents) == sorted(item.id for item in DOCUMENTS if item.owner == "owner1")
    never = _rebuilt(tmp_path / "never", kept)
    assert tree(store.root / "data") == tree(never.root / "data")
    assert store.digest() == never.digest()
    assert not (store.root / "pending.json").exists()


def test_no_file_of_the_store_holds_a_piece_of_an_erased_document(store: Store) -> None:
    with store.reading() as view:
        parts = [part for bucket in view.buckets for part in bucket.encoded_documents()]
    gone = bytes.fromhex(DOCUMENTS[3].id)
    traces = Traces.of([part for part in parts if part.id == gone]).without(part for part in parts if part.id != gone)
    assert len(traces) > 100
    assert scan([store.root / "data"], traces).hits
    store.erase(Selector(document="d3"))
    assert scan([store.root], traces).hits == ()


def test_a_receipt_is_signed_and_names_the_document_only_to_its_owner(store: Store) -> None:
    done = store.erase(Selector(document=DOCUMENTS[5].id))
    assert done.receipt is not None
    content = read_receipt(done.receipt)
    found = check_receipt(
        content, key=(store.root / "keys" / "receipts.pem.pub").read_bytes(), log=store.root / "log.jsonl"
    )
    assert found["failed_checks"] == []
    assert content["checks"]["digest-recomputed"] is True
    assert proves(content, DOCUMENTS[5].id, done.salts[DOCUMENTS[5].id])
    assert DOCUMENTS[5].id not in done.receipt.read_text()


def test_an_erased_work_cannot_be_added_again_unless_allowed(store: Store) -> None:
    store.erase(Selector(document="d2"))
    again = store.add([DOCUMENTS[2], document("other-name", TEXTS[2].upper())])
    assert (again.added, again.reasons["suppressed"]) == (0, 2)
    assert store.allow(DOCUMENTS[2].id)
    assert store.add([DOCUMENTS[2]]).added == 1


def test_a_document_without_the_store_right_is_refused_with_the_reason(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    denied = replace(DOCUMENTS[0], rights=replace(DOCUMENTS[0].rights, store=False))
    done = store.add([denied, DOCUMENTS[1], DOCUMENTS[1]])
    assert (done.read, done.added, done.unchanged, done.refused) == (3, 1, 1, 1)
    assert done.refusals[0].reason == "no-store-right"


def test_another_text_under_a_stored_id_is_refused(store: Store) -> None:
    done = store.add([document("d1", "quite another text", owner="owner1", domain="domain1")])
    assert done.reasons == {"other-record": 1}
    assert done.refusals[0].detail == "stored under this id with another text: --update replaces it"
    done = store.add([replace(DOCUMENTS[1], owner="somebody", domain="other")])
    assert done.refusals[0].detail == "stored under this id with another domain and owner: --update replaces it"


def test_the_same_record_from_a_renamed_file_is_told_from_another_one(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    first = replace(DOCUMENTS[1], evidence=(Evidence("MIT", "old.jsonl:1", "field", 1.0, Tier.sw, "MIT"),))
    renamed = replace(first, evidence=(Evidence("MIT", "new.jsonl:1", "field", 1.0, Tier.sw, "MIT"),))
    together = store.add([first, first, renamed])
    assert (together.added, together.unchanged, together.reasons) == (1, 1, {"other-evidence": 1})
    before = tree(store.root / "data")
    done = store.add([renamed])
    assert (done.read, done.unchanged, done.refused, done.reasons) == (1, 0, 1, {"other-evidence": 1})
    assert "evidence" in done.refusals[0].detail and "text" not in done.refusals[0].detail
    assert tree(store.root / "data") == before
    assert store.add([first]).unchanged == 1


@pytest.mark.parametrize("wrong", ["", "zz", "d1", "0" * 31, "A" * 32, "0" * 30 + " 0", "../" + "0" * 29])
def test_a_malformed_id_is_refused_before_anything_is_written(store: Store, wrong: str) -> None:
    before = tree(store.root)
    with pytest.raises(SiloError) as caught:
        store.add([document("new", "A new text about rhubarb."), replace(DOCUMENTS[0], id=wrong)])
    assert caught.value.code == "field-type"
    assert tree(store.root) == before


def test_more_licences_than_a_bucket_can_number_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silo.store.adding.admission._MOST_LICENCES", 3)
    store = small_store(tmp_path / "s")
    licensed = [document(f"d{n}", f"text {n}", license=f"LicenseRef-{n}") for n in range(5)]
    done = store.add(licensed)
    assert (done.added, done.reasons) == (3, {"too-many-licences": 2})
    again = store.add([licensed[4], document("d9", "text 9", license="LicenseRef-1")])
    assert (again.added, again.refused) == (1, 1)
    assert store.verify().problems == ()


@pytest.mark.parametrize(
    "policy",
    [
        Policy.of(owners=["owner2"]),
        Policy.of(domains=["domain0", "domain1"], owners=["owner0", "owner3"]),
        Policy.of(without=[item.id for item in DOCUMENTS[:10]]),
        Policy.of(tiers=["pd"]),
    ],
)
def test_a_policy_gives_the_answers_of_a_store_of_its_documents_alone(
    store: Store, tmp_path: Path, policy: Policy
) -> None:
    with store.reading() as view:
        allowed = [
            item
            for bucket in view.buckets
            for item, good in zip(map(bucket.document, range(len(bucket))), policy.allows(bucket), strict=True)
            if good
        ]
    alone = _rebuilt(tmp_path / "alone", allowed)
    keys = _keys(TEXTS[11])[::7]
    mine, theirs = store.search(keys, 8, policy, probes=2), alone.search(keys, 8, probes=2)
    assert mine.distances.tolist() == theirs.distances.tolist()
    assert mine.values.tolist() == theirs.values.tolist()
    assert mine.positions.tolist() == theirs.positions.tolist()
    assert [mine.documents(at) for at in range(len(keys))] == [theirs.documents(at) for at in range(len(keys))]
    for prefix in (b"Document number 1", b" pears and the 3", b"zzz"):
        a, b = store.continuations([*prefix], policy), alone.continuations([*prefix])
        assert (a.length, a.tokens.tolist(), a.counts.tolist(), a.total) == (
            b.length,
            b.tokens.tolist(),
            b.counts.tolist(),
            b.total,
        )
    found = [(item.document, item.first, item.score) for item in store.passages("winter of the north 7", 5, policy)]
    assert found == [(item.document, item.first, item.score) for item in alone.passages("winter of the north 7", 5)]


def test_a_second_open_store_sees_adds_and_erasures_without_a_restart(store: Store) -> None:
    reader = Store.open(store.root)
    assert len(list(reader.documents())) == 40
    store.erase(Selector(document="d9"))
    assert not [item for item in reader.documents() if item.external_id == "d9"]
    store.add([document("new", "A new text about rhubarb and its friends.")])
    assert reader.passages("rhubarb", 1)[0].document == document("new", "").id
    reader.close()


def test_one_process_writes_at_a_time(store: Store) -> None:
    with store.writing(), pytest.raises(SiloError, match="busy"):
        Store.open(store.root, SmallEncoder()).add([DOCUMENTS[0]])


def test_copies_of_other_owners_are_listed_and_never_removed(store: Store) -> None:
    long = " ".join(f"sentence {n} of a work that somebody wrote" for n in range(60))
    store.add(
        [
            document("work", long, owner="ann"),
            document("same", long.upper(), owner="bob"),
            document("near", long + " and a note at the end of it", owner="cid"),
            document("mine", "A foreword. " + long, owner="ann"),
        ]
    )
    done = store.erase(Selector(document="work"), copies=True)
    assert len(done.documents) == 2
    assert {(copy.external_id, copy.exact) for copy in done.copies} == {("same", True), ("near", False)}
    assert {item.external_id for item in store.documents(Selector(query="somebody wrote"))} == {"same", "near"}


def test_an_objection_to_a_text_leaves_the_copy_that_another_owner_held(store: Store) -> None:
    text = " ".join(f"sentence {n} that two people have" for n in range(40))
    mine, theirs = document("x", text, owner="xan"), document("y", text, owner="yve")
    store.add([mine, theirs])
    assert [copy.external_id for copy in store.erase(Selector(owner="xan"), copies=True).copies] == ["y"]
    before = tree(store.root)
    assert store.replay() == ()
    assert tree(store.root) == before
    again = store.add([theirs])
    assert (again.unchanged, again.refused) == (1, 0)
    new = store.add([document("z", text, owner="zoe"), mine])
    assert new.reasons == {"suppressed": 2}
    assert {item.external_id for item in store.documents(Selector(query="two people have"))} == {"y"}


def test_a_store_opens_only_with_its_own_model(store: Store) -> None:
    encoder = SmallEncoder()
    encoder.fingerprint = "another"
    with pytest.raises(SiloError, match="store-mismatch"):
        Store.open(store.root, encoder)


def test_searches_that_were_not_asked_for_cost_nothing_and_are_refused(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "s", SmallEncoder(), searches=["ngram"])
    store.add(DOCUMENTS[:3])
    assert store.continuations([*b"Document numb"]).length == 13
    with pytest.raises(SiloError, match="search-missing"):
        store.passages("x", 1)
    with pytest.raises(SiloError, match="search-missing"):
        store.search(np.zeros((1, 16)), 1)
    assert store.verify().problems == ()


def test_verify_makes_every_bucket_again(store: Store) -> None:
    assert store.verify(keys=True).problems == ()
    assert store.self_test()["recall"] > 0.5
    assert store.stats()["documents"] == 40


def test_a_broken_token_search_is_refused_before_it_answers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.search(_keys(TEXTS[0])[:2], 2)
    assert store.recall is not None
    assert store.recall > 0.5
    whole = KnnIndex.search

    def careless(self: KnnIndex, *given: Any, **more: Any) -> NearestRows:
        found = whole(self, *given, **more)
        return found._replace(distances=found.distances * np.float32(1.1))

    monkeypatch.setattr(KnnIndex, "search", careless)
    with pytest.raises(SiloError, match="search-unfit"):
        Store.open(store.root).search(_keys(TEXTS[0])[:2], 2)


def test_a_search_that_reads_too_few_lists_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It still finds most of the nearest rows, and every distance it gives is right."""
    store = small_store(tmp_path / "s", bucket_bytes=1 << 20)
    letters = np.random.default_rng(3).choice(list("abcdefghijklmnop "), (40, 100))
    store.add([document(f"d{number}", "".join(row)) for number, row in enumerate(letters)])
    assert store.self_test()["recall"] > 0.9
    whole = KnnIndex.search

    def careless(self: KnnIndex, keys: Any, k: int, *, probes: int, **more: Any) -> NearestRows:
        return whole(self, keys, k, probes=probes if probes > PROBES else 1, **{**more, "rows_wanted": 0})

    monkeypatch.setattr(KnnIndex, "search", careless)
    with pytest.raises(SiloError, match="search-unfit"):
        store.self_test()


@pytest.mark.parametrize("name", ["centroids", "codebooks"])
def test_a_search_with_a_permuted_codec_is_refused(store: Store, name: str) -> None:
    codec = small_codec()
    arrays = replace(codec.arrays, **{name: getattr(codec.arrays, name)[::-1].copy()})
    with store.reading() as view, pytest.raises(SiloError, match="search-unfit"):
        self_test(view, SearchTables(Codec(codec.settings, arrays, codec.samples)))


def test_a_selector_that_selects_nothing_erases_nothing(store: Store) -> None:
    before = store.digest()
    assert store.erase(Selector(owner="nobody")).receipt is None
    with pytest.raises(SiloError, match="usage"):
        store.erase(Selector())
    assert store.digest() == before


def test_an_erasure_does_not_wait_for_a_store_that_was_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silo.store.erasure.erase.DRAIN_SECONDS", 0.5)
    store = small_store(tmp_path / "s")
    store.add([document("a", "some words of a document that stays"), document("b", "and some of one that goes")])
    reader = Store.open(store.root)
    with reader.reading() as view:
        view.itself = view  # type: ignore[attr-defined]  # as caches may do
    del reader, view
    done = store.erase(Selector(document="b"))
    assert done.receipt is not None
    assert read_receipt(done.receipt)["checks"]["readers-drained"] is True


def test_what_records_of_staying_documents_say_is_no_residue(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    goes = document("goes", "This file is under the Mozilla Public License, and so on.")
    store.add([document("stays", "nothing of the kind", url="somewhere/Mozilla Public License, and so on"), goes])
    done = store.erase(Selector(document="goes"))
    assert done.receipt is not None
    assert read_receipt(done.receipt)["checks"]["residue-hits"] == 0


@pytest.mark.parametrize("kind", [",", "<u3", "O", "", "entry,"])
def test_a_bucket_with_a_section_of_an_unheard_of_type_is_damaged(kind: str) -> None:
    head = json.dumps({"names": {}, "sections": {"index": [0, kind, [1]]}}).encode()
    data = b"silobkt3" + len(head).to_bytes(8, "little") + head + bytes(200)
    with pytest.raises(SiloError, match="store-damaged"):
        Bucket("", memoryview(data))


def test_a_bucket_of_another_version_is_told_from_a_damaged_one() -> None:
    older = MAGIC[:-1] + b"0"
    for head, code in ((older, "store-mismatch"), (b"something", "store-damaged"), (b"", "store-damaged")):
        with pytest.raises(SiloError) as caught:
            Bucket("01", memoryview(head + bytes(64)))
        assert caught.value.code == code
    with pytest.raises(SiloError, match=f"format {older.decode()}, not {MAGIC.decode()}") as caught:
        Bucket("", memoryview(older + bytes(64)))
    assert "make it again" in caught.value.hint


def test_a_receipt_names_models_that_were_trained_on_the_same_text_under_another_id(store: Store) -> None:
    asked: list[tuple[list[str], dict[str, bytes]]] = []
    store.list_models = lambda names, texts: asked.append((list(names), dict(texts))) or ()  # type: ignore[func-returns-value]
    store.erase(Selector(document="d4"))
    assert asked == [([DOCUMENTS[4].id], {DOCUMENTS[4].id: text_hash(DOCUMENTS[4].text)})]


def test_what_a_killed_writer_left_since_the_store_was_opened_is_no_damage(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.add([document("a", "A text about nothing in particular.")])
    bucket = next((store.root / "data" / "buckets").iterdir())
    left = bucket.with_name("root-0123456789abcdef.bucket")
    left.write_bytes(bucket.read_bytes())
    assert store.verify().problems == ()
    assert not left.exists()


def test_what_somebody_else_cleans_up_while_we_verify_is_no_damage(tmp_path: Path) -> None:
    store = small_store(tmp_path / "s")
    store.add([document("a", "A text about nothing in particular.")])
    bucket = next((store.root / "data" / "buckets").iterdir())
    left = bucket.with_name("root-0123456789abcdef.bucket")
    store.close()
    opened = Store.open(store.root)
    left.write_bytes(bucket.read_bytes())
    assert opened.verify(advance=lambda *_: left.unlink(missing_ok=True)).problems == ()


@pytest.mark.parametrize("number", [1, 4, 9, 16, 25])
def test_an_open_store_begins_again_after_a_write_that_failed(tmp_path: Path, number: int) -> None:
    store = small_store(tmp_path / "store")
    store.add(DOCUMENTS[:4])
    with watched(fail_at(number, "enospc")), pytest.raises(SiloError, match="no space left"):
        store.erase(Selector(document="d1"), suppress=False)
    with pytest.raises(SiloError, match="an earlier write"):
        store.erase(Selector(document="d2"))
    store.begin_again()
    store.erase(Selector(document="d1"), suppress=False)
    assert store.erase(Selector(document="d2")).failed_checks == []
    assert [item.external_id for item in store.documents(Selector(source="test"))] == [
        item.external_id for item in _rebuilt(tmp_path / "twin", [DOCUMENTS[0], DOCUMENTS[3]]).documents()
    ]
    assert store.verify().problems == ()
