"""Corpora and stores made by a cluster are those of one machine, also where workers and commands are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from silo.cli import main
from silo.cluster.build import build_elsewhere, run_on_cluster
from silo.corpus.build import build
from silo.corpus.workers import Note, Show, Task, TaskFunction
from silo.errors import SiloError
from silo.files import exclusive, read_json, write_json
from silo.recipe import CorpusRecipe, SourceRecipe
from silo.store.encode import Quantise
from silo.store.store import Store
from silo.text.tokenizer import Ids
from tests.conftest import build_from, record, words, write_jsonl
from tests.store.small import SmallEncoder, document, small_store, tree

DOMAINS, PARTS = 3, 8


def _corpus(root: Path) -> dict[str, bytes]:
    """Every file of a corpus but the one that holds times."""
    return {name: content for name, content in tree(root).items() if name != "build.json"}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of several domains with repeats in and across them, and one record that cannot be read."""
    folder = tmp_path_factory.mktemp("parts")
    files = [
        write_jsonl(
            folder / f"{part}.jsonl",
            [record(f"{part}-{at}", words(part * at % 50, 60), domain=f"d{at % DOMAINS}") for at in range(40)],
        )
        for part in range(PARTS)
    ]
    with files[0].open("a") as stream:
        stream.write("not json\n")
    return files


@pytest.fixture(scope="module")
def on_one_machine(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("one") / "out"
    build_from(parts, out)
    return _corpus(out)


def test_the_command_builds_the_same_bytes(
    cluster: Any, parts: list[Path], on_one_machine: dict[str, bytes], tmp_path: Path
) -> None:
    files = list(map(str, parts))
    status = main(["corpus", "build", "--jsonl", *files, "--out", str(tmp_path / "out"), "--ray", cluster.address])
    assert status == 0
    assert _corpus(tmp_path / "out") == on_one_machine
    assert not (tmp_path / "out.building").exists()


def _die_once(markers: str, function: TaskFunction, *arguments: Any) -> dict[str, Any]:
    """The first time that a function is called, its worker dies after the work and before its report."""
    report = function(*arguments)
    try:
        Path(markers, function.__name__).touch(exist_ok=False)
    except FileExistsError:
        return report
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("the signal was sent to this process")


def _run_dying(markers: Path, function: TaskFunction, tasks: Sequence[Task], **more: Any) -> None:
    run_on_cluster(partial(_die_once, str(markers), function), tasks, **more)


def test_killed_workers_cost_their_tasks_only(
    cluster: Any, parts: list[Path], on_one_machine: dict[str, bytes], tmp_path: Path
) -> None:
    shown: list[tuple[str, int, int]] = []
    markers = tmp_path / "markers"
    markers.mkdir()
    build(
        CorpusRecipe(source=(SourceRecipe("jsonl", tuple(map(str, parts))),)),
        tmp_path / "out",
        base=tmp_path,
        advance=lambda *told: shown.append(told),
        run_tasks=partial(_run_dying, markers),
    )
    assert sorted(path.name for path in markers.iterdir()) == ["clean_domain", "read_part", "tokenise_shard"]
    assert _corpus(tmp_path / "out") == on_one_machine
    assert {stage for stage, _, _ in shown} >= {"read", "clean", "tokens"}
    assert all(0 <= done <= total for _, done, total in shown)


def test_a_killed_command_goes_on_where_it_was(
    cluster: Any, parts: list[Path], on_one_machine: dict[str, bytes], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "silo", "corpus", "build", "--quiet", "--jsonl", *map(str, parts)]
    command += ["--out", str(tmp_path / "out"), "--ray", cluster.address]
    with subprocess.Popen(command) as running:
        while not list(tmp_path.glob("out.building/work/read/*.json")):
            assert running.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        running.kill()
    assert not (tmp_path / "out").exists()
    assert main(["corpus", "build", "--quiet", *command[6:]]) == 0
    assert _corpus(tmp_path / "out") == on_one_machine


def _say(word: str) -> dict[str, Any]:
    return {"word": word}


class _Silent:
    """Nobody looks at progress and memory."""

    show: Show = staticmethod(lambda _: None)
    note: Note = staticmethod(lambda *_: None)


def _run(function: TaskFunction, *tasks: Task) -> list[Any]:
    run_on_cluster(function, tasks, show=_Silent.show, note=_Silent.note, lock=None)
    return [read_json(task.report) for task in tasks]


def test_a_worker_that_only_seemed_to_be_lost_is_waited_for(cluster: Any, tmp_path: Path) -> None:
    task = Task(tmp_path / "one.json", ("the second",), 1)
    held = threading.Event()

    def finish_late() -> None:
        with exclusive(tmp_path / "one.lock"):
            held.set()
            time.sleep(1)
            write_json(task.report, {"word": "the first"})

    seemed_lost = threading.Thread(target=finish_late)
    seemed_lost.start()
    held.wait()
    assert _run(_say, task) == [{"word": "the first"}]
    seemed_lost.join()


def test_a_folder_that_workers_do_not_see_is_refused(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        _run(_say, Task(tmp_path / "only-here" / "one.json", ("word",), 1))
    assert caught.value.code == "cluster-unfit"


def _fail(code: str) -> dict[str, Any]:
    raise SiloError(code, "as it was raised", "what to do") if code else ValueError("unexpected")


def test_an_error_of_a_task_is_the_error_of_the_command(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(SiloError) as caught:
        _run(_fail, Task(tmp_path / "one.json", ("disk-full",), 1), Task(tmp_path / "two.json", ("disk-full",), 1))
    assert (caught.value.code, caught.value.message, caught.value.hint) == (
        "disk-full",
        "as it was raised",
        "what to do",
    )
    with pytest.raises(RuntimeError, match="unexpected"):
        _run(_fail, Task(tmp_path / "three.json", ("",), 1))


DOCUMENTS = [document(f"d{number}", words(number, 40), license="MIT") for number in range(60)]
CHANGED = [document(f"d{number}", words(number + 1000, 40), license="MIT") for number in range(0, 60, 4)]


def _without_evidence(root: Path) -> dict[str, bytes]:
    """What documents alone decide: the data, not the log and receipts, which hold times."""
    return tree(root / "data")


@pytest.fixture(scope="module")
def small_stores(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[dict[str, bytes], str]]:
    """Data and digest of stores made by one machine: with the documents, and with other versions of some."""
    made: dict[str, tuple[dict[str, bytes], str]] = {}
    store = small_store(tmp_path_factory.mktemp("store") / "store")
    store.add(DOCUMENTS)
    made["added"] = _without_evidence(store.root), store.digest()
    store.add(CHANGED, update=True)
    made["updated"] = _without_evidence(store.root), store.digest()
    store.close()
    return made


@pytest.fixture
def helped_store(cluster: Any, tmp_path: Path) -> Iterator[Store]:
    """An empty store whose buckets the cluster makes."""
    store = small_store(tmp_path / "store")
    store.load_encoder = SmallEncoder
    build_elsewhere(store)
    yield store
    store.close()


def test_a_store_has_the_same_bytes(
    helped_store: Store, small_stores: Mapping[str, tuple[dict[str, bytes], str]]
) -> None:
    shown: list[tuple[str, int, int]] = []
    half = len(DOCUMENTS) // 2
    helped_store.add(DOCUMENTS[:half])
    added = helped_store.add(DOCUMENTS[half:], advance=lambda *told: shown.append(told))
    assert added.added == len(DOCUMENTS) - half
    assert (_without_evidence(helped_store.root), helped_store.digest()) == small_stores["added"]
    assert shown[-1] == ("encode", shown[-1][2], shown[-1][2])
    assert helped_store.add(CHANGED, update=True).replaced == len(CHANGED)
    assert (_without_evidence(helped_store.root), helped_store.digest()) == small_stores["updated"]
    assert helped_store.verify().problems == ()


class _DyingEncoder(SmallEncoder):
    """Takes its process with it when it is used first."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self._marker = marker

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]:
        try:
            self._marker.touch(exist_ok=False)
        except FileExistsError:
            return super().codes(documents, quantise)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("the signal was sent to this process")


def test_a_killed_worker_costs_its_bucket_only(
    helped_store: Store, small_stores: Mapping[str, tuple[dict[str, bytes], str]], tmp_path: Path
) -> None:
    helped_store.load_encoder = partial(_DyingEncoder, tmp_path / "died")
    build_elsewhere(helped_store)
    helped_store.add(DOCUMENTS)
    assert (tmp_path / "died").exists()
    assert (_without_evidence(helped_store.root), helped_store.digest()) == small_stores["added"]


class _OtherEncoder(SmallEncoder):
    fingerprint = "another"


def test_a_worker_with_another_model_is_refused(helped_store: Store) -> None:
    helped_store.load_encoder = _OtherEncoder
    build_elsewhere(helped_store)
    with pytest.raises(SiloError) as caught:
        helped_store.add(DOCUMENTS)
    assert caught.value.code == "store-mismatch"
    assert helped_store.stats()["documents"] == 0
