"""A store searched on three nodes: the answers of one machine to the bit, whoever dies, stops or comes back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from silo.cluster import search as cluster_search
from silo.cluster.search import NAMESPACE, ClusterSearch, Placement, end_lasting, place_lasting
from silo.errors import SiloError
from silo.inference.predict import open_predictor
from silo.inference.retrieval import reading
from silo.inference.score import score_text
from silo.store.parts.searcher import Question, State
from silo.store.policy import EVERYTHING
from silo.store.selector import Selector
from silo.store.store import Store
from silo.store.view import Neighbours
from silo.text.stream import TokenStream
from tests.inference.world import TEXTS, ids_of, make_model, make_store
from tests.store.small import SmallEncoder, document, small_store
from tests.store.test_parts import POLICIES, assert_same, keys_of, prefixes, text_of

QUERIES = int(os.environ.get("SILO_RAY_QUERIES", "300"))
BATCH = 100
KEYS = keys_of(text_of(0))[::5]


@pytest.fixture(scope="module")
def store(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store in two parts, each on two of three nodes; every test erases another document of it."""
    made = small_store(tmp_path_factory.mktemp("searched") / "store")
    made.add([document(f"d{n}", text_of(n), owner=f"owner{n % 4}") for n in range(60)])
    made.searchers = search = ClusterSearch.place(made.root, parts=2, cpus=0.5)
    yield made
    search.close()
    made.close()


def keys_near(name: str) -> NDArray[np.float32]:
    """Keys whose nearest rows are those of a document."""
    return keys_of(text_of(int(name[1:])))[::5]


def search_of(store: Store) -> ClusterSearch:
    assert isinstance(store.searchers, ClusterSearch)
    return store.searchers


@contextmanager
def embedded(store: Store) -> Iterator[Store]:
    """The same store, searched in this process."""
    search, store.searchers = store.searchers, None
    try:
        yield store
    finally:
        store.searchers = search


def both(store: Store, ask: Callable[[Store], Any]) -> tuple[Any, Any]:
    """What the searchers answer, and what this process does."""
    mine = ask(store)
    with embedded(store):
        return mine, ask(store)


def content(found: Neighbours) -> bytes:
    """Everything an answer says, with ids in the place of rows."""
    ids = "".join(map("".join, (found.documents(key) for key in range(len(found.rows)))))
    return ids.encode() + found.positions.tobytes() + found.values.tobytes() + found.distances.tobytes()


def named(found: Neighbours) -> set[str]:
    """The documents of an answer."""
    return {name for key in range(len(found.rows)) for name in found.documents(key)}


def first_searcher(store: Store) -> Any:
    return next(iter(search_of(store)._every()))


def process_of(replica: Any) -> int:
    """The process of a searcher, 0 while there is none."""
    import ray

    try:
        return int(ray.get(replica.handle.__ray_call__.remote(lambda _: os.getpid())))
    except ray.exceptions.RayError:
        return 0


def wait_until(holds: Callable[[], bool], seconds: float) -> float:
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < seconds
        time.sleep(0.05)
    return time.monotonic() - begin


def in_service(store: Store) -> bool:
    store.search(KEYS[:1], 1)
    return all(one.in_service for one in search_of(store)._every())


def test_parts_are_on_different_nodes(store: Store) -> None:
    import ray

    node = lambda _: ray.get_runtime_context().get_node_id()  # noqa: E731
    for part in search_of(store)._replicas:
        assert len({ray.get(one.handle.__ray_call__.remote(node)) for one in part}) == 2


def test_every_search_gives_the_bits_of_one_machine(store: Store) -> None:
    rng = np.random.default_rng(3)
    for number in range(QUERIES // BATCH):
        policy = POLICIES[number % len(POLICIES)]
        keys = rng.normal(size=(BATCH, KEYS.shape[1])).astype(np.float32) + KEYS[number % len(KEYS)]
        assert_same(*both(store, lambda one, keys=keys, policy=policy: one.search(keys, 16, policy)))  # type: ignore[misc]
    for number, ids in enumerate(prefixes(QUERIES // 10)):
        policy = POLICIES[number % len(POLICIES)]

        def ask(one: Store, ids: NDArray[np.int64] = ids, policy: Any = policy, number: int = number) -> Any:
            with reading([one], policy) as found:
                levels = [(level.length, level.tokens, level.counts) for level in found.next_tokens([ids])[0]]
                held = found.holders(0, [ids], np.array([3]), np.array([1, 2, 3]), np.array([0.1, 0.2, 0.4]))
                passages = [item for _, item in found.passages(text_of(number)[:80], 5)]
                return levels, held, passages, found.levels(ids), found.continue_match(ids, 9, least=1)

        assert_same(*both(store, ask))


def test_scores_are_those_of_one_machine(cluster: Any, tmp_path: Path) -> None:
    make_store(tmp_path / "store", make_model(tmp_path)).close()
    predictor = open_predictor(tmp_path / "model", [tmp_path / "store"], method="knn+ngram+ric")
    (store,) = predictor.stores
    store.searchers = ClusterSearch.place(store.root, parts=2, cpus=0.25)
    try:
        for text in TEXTS.values():
            stream = TokenStream(
                ids_of(text), np.ones(len(text) + 1, dtype=np.bool_), np.ones(len(text) + 1, np.uint32)
            )
            mine, theirs = both(store, lambda _, stream=stream: score_text(predictor, stream))  # type: ignore[misc]
            assert_same((mine.logs, mine.shares), (theirs.logs, theirs.shares))
    finally:
        search_of(store).close()
        store.close()


def test_an_erasure_is_accepted_when_every_searcher_hides_the_document(store: Store) -> None:
    import ray

    keys = keys_near("d3")
    name = store.get("d3").id
    assert name in named(store.search(keys, 9))
    hidden: list[bool] = []

    def look() -> None:
        with store.reading() as view:
            state = State.of(view)
        assert state.dead
        states = [one.handle.hold.remote("test", frozenset()) for one in search_of(store)._every()]
        hidden.append(set(ray.get(states)) == {state})

    erased = store.erase(Selector(document="d3"), accepted=look)
    assert hidden == [True]
    assert erased.failed_checks == []
    assert name not in named(store.search(keys, 9))
    assert_same(*both(store, lambda one: one.search(keys, 9)))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_search, "ACKNOWLEDGE_SECONDS", 2.0)


@pytest.mark.usefixtures("impatient")
def test_a_stopped_searcher_holds_up_no_answer_and_no_erasure_and_wakes_to_no_erased_text(store: Store) -> None:
    with store.reading() as view:
        before = State.of(view)
    keys, name = keys_near("d11"), store.get("d11").id
    assert name in named(store.search(keys, 9))
    replica = first_searcher(store)
    process = process_of(replica)
    os.kill(process, signal.SIGSTOP)
    try:
        for _ in range(4):
            store.search(keys, 9)
        begin = time.monotonic()
        took: list[float] = []
        store.erase(Selector(document="d11"), accepted=lambda: took.append(time.monotonic() - begin))
        assert took[0] < 20
    finally:
        with suppress(ProcessLookupError):  # it was ended, and another one started
            os.kill(process, signal.SIGCONT)
    assert name not in named(store.search(keys, 50))
    wait_until(lambda: in_service(store), 120)
    import ray

    question = Question("longest", EVERYTHING, ([ids_of(text_of(11)).astype(np.int64)],))
    answer = ray.get(replica.handle.ask.remote(before, question))
    assert answer.state != before
    assert answer.value is None
    assert_same(*both(store, lambda one: one.search(keys, 9)))


def test_a_searcher_that_is_killed_is_started_again_with_the_manifest_of_now(store: Store) -> None:
    replica = first_searcher(store)
    process = process_of(replica)
    store.erase(Selector(document="d13"))
    os.kill(process, signal.SIGKILL)
    assert_same(*both(store, lambda one: one.search(KEYS, 9)))
    wait_until(lambda: process_of(replica) not in (0, process) and in_service(store), 120)
    assert_same(*both(store, lambda one: one.search(KEYS, 9)))


def test_documents_that_come_in_are_found(store: Store) -> None:
    store.use(SmallEncoder())
    store.add([document("new", "an entirely new document of unheard words")])
    found = store.passages("unheard words", 1)
    assert [item.document for item in found] == [store.get("new").id]
    assert_same(*both(store, lambda one: one.passages("unheard words and numbers", 5)))


def test_searchers_that_nobody_has_room_for_are_refused(
    cluster: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_search, "_PLACE_SECONDS", 3.0)
    with pytest.raises(SiloError) as caught:
        ClusterSearch.place(store.root, cpus=50)
    assert caught.value.code == "cluster-unavailable"


def _searching_node(store: Store, cluster: Any) -> tuple[Any, set[int]]:
    """A node besides the head that has searchers, and their processes."""
    import ray

    def place_of(_: Any) -> tuple[str, int]:
        return str(ray.get_runtime_context().get_node_id()), os.getpid()

    places = ray.get([replica.handle.__ray_call__.remote(place_of) for replica in search_of(store)._every()])
    node = next(node for node in cluster.worker_nodes if node.node_id in {name for name, _ in places})
    return node, {process for name, process in places if name == node.node_id}


def test_a_killed_node_costs_no_answer_and_brings_nothing_back(
    store: Store, cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = keys_near("d7")
    with embedded(store):
        before = content(store.search(keys, 9))
    given: list[tuple[bool, bytes]] = []
    lost: list[BaseException] = []
    accepted, over = threading.Event(), threading.Event()

    def load() -> None:
        while not over.is_set():
            late = accepted.is_set()
            try:
                given.append((late, content(store.search(keys, 9))))
            except BaseException as error:
                lost.append(error)

    asking = [threading.Thread(target=load) for _ in range(2)]
    for thread in asking:
        thread.start()
    try:
        time.sleep(0.5)
        node, gone = _searching_node(store, cluster)
        begin = time.monotonic()
        cluster.remove_node(node, allow_graceful=False)
        erased = store.erase(Selector(document="d7"), accepted=accepted.set)

        def all_back() -> bool:
            processes = {process_of(replica) for replica in search_of(store)._every()}
            return all(processes) and not processes & gone and in_service(store)

        wait_until(all_back, 180)
        recovery = time.monotonic() - begin
        time.sleep(0.5)
    finally:
        over.set()
        for thread in asking:
            thread.join()
    with embedded(store):
        after = content(store.search(keys, 9))
    assert lost == []
    assert before != after
    assert {answer for late, answer in given} <= {before, after}
    assert {answer for late, answer in given if late} == {after}
    assert erased.failed_checks == []
    with capsys.disabled():
        sys.stderr.write(f"\n{len(given)} answers, 0 wrong, 0 lost; all searchers back after {recovery:.1f} s\n")
    cluster.add_node(num_cpus=2, num_gpus=0, object_store_memory=100 << 20, node_ip_address="127.0.0.1")


def test_searchers_that_last_are_found_whole_or_placed_anew(cluster: Any, store: Store) -> None:
    import ray

    first = place_lasting("test", store.root, 1)
    names = first.placement.actors
    try:
        assert place_lasting("test", store.root, 1).placement == first.placement
        ray.kill(ray.get_actor(sorted(names)[0], namespace=NAMESPACE))
        again = place_lasting("test", store.root, 1)
        assert again.placement.actors == names
        assert Placement.known(again.placement.name) == [(again.placement, names)]
    finally:
        end_lasting("test", [store.root])
    assert Placement.known(first.placement.name) == []
