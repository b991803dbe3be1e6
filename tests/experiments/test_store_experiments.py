"""Experiments on what a store is used for, on small text: they run whole and measure nothing twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from silo.experiments.attribution import contains
from silo.experiments.extraction import longest_common_run
from silo.experiments.harness.lab import Lab
from silo.experiments.harness.result import Result, load_result
from silo.experiments.run import run_experiment
from silo.pairing import open_store
from tests.conftest import record, words, write_jsonl
from tests.experiments.small import make_lab, reopen


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        yield make_lab(tmp_path_factory.mktemp("lab"), patch)


def run_small(lab: Lab, name: str, recipe: str) -> Result:
    """One run with this recipe; what is on disk is what was returned, and a second run measures nothing."""
    (lab.recipes / f"{name}.toml").write_text(f'question = "Does it run?"\npaper = "tab:none"\n{recipe}')
    result, place = run_experiment(lab, name)
    loaded = load_result(place)
    assert (loaded.answer, loaded.tables, loaded.plot) == (result.answer, result.tables, result.plot)
    told: list[str] = []
    again, _ = run_experiment(reopen(lab, talk=told.append), name)
    assert not told
    assert again.tables == result.tables
    return result


OPTOUT = """
models = ["pdsw"]
reference = "all"
series = "series.all.jsonl"
background = "notes"
methods = ["lm", "ric", "knn", "ngram", "knn+ngram"]
neighbours = 64
volume_tokens = 200
validation_tokens = 400
block_tokens = 50
"""


def _write_series(folder: Path) -> None:
    refrain = words(9_000, 40)
    volumes = [
        record(
            f"volume-{n}",
            f"{refrain} {words(9_001 + n, 30)}",
            domain="series",
            license="CC0-1.0",
            metadata={"author": "A. Writer"},
        )
        for n in range(3)
    ]
    write_jsonl(folder / "series.all.jsonl", volumes)


@pytest.mark.slow
def test_other_volumes_help_until_they_are_erased(lab: Lab) -> None:
    _write_series(lab.data)
    result = run_small(lab, "optout", OPTOUT)
    volume = result.facts["volumes"]["pdsw"]["volume-0"]
    assert volume["ngram; others"]["value"] < volume["ngram; without"]["value"]
    assert volume["ngram; all"]["value"] <= volume["ngram; others"]["value"]
    assert {"lm", "reference", "ric; others", "reference + knn+ngram; all"} <= set(volume)
    erased = result.facts["erasures"]["pdsw"]
    assert erased["documents"] == 3
    assert erased["digest_changed_by_adding"] and erased["digest_as_before"] and erased["scores_as_before"]
    assert not erased["failed_checks"]
    assert "exactly what they were" in result.answer


EXTRACTION = """
models = ["pdsw"]
domains = ["notes"]
methods = ["lm", "ngram", "knn+ngram"]
protected = "knn+ngram"
guards = [4]
policy = 'tier < "restricted"'
prompts = { pdsw = 4 }
prompt_tokens = 20
new_tokens = 30
long_run = 20
members = 6
member_tokens = 80
neighbours = 64
validation_tokens = 400
"""


def test_guard_policy_and_erasure_narrow_what_can_be_drawn_out(lab: Lab) -> None:
    result = run_small(lab, "extraction", EXTRACTION)
    runs = {arm: items["notes"] for arm, items in result.facts["extraction"]["pdsw"].items()}
    assert runs["ngram"]["mean"]["value"] > runs["lm"]["mean"]["value"]
    assert runs["knn+ngram, guard 4"]["percentile_95_any"]["value"] <= 4
    assert runs["knn+ngram, policy"] == runs["lm"]
    told = result.facts["membership"]["pdsw"]["notes"]
    assert told["stored, ratio"]["value"] == 1.0
    assert told["erased, ratio"]["low"] <= 0.5 <= told["erased, ratio"]["high"]


def test_the_longest_common_run() -> None:
    source = np.array([1, 2, 3, 1, 2, 3, 4], dtype=np.uint32)
    for written, longest in (([9, 1, 2, 3, 4, 9, 2, 3], 4), ([9], 0), ([], 0)):
        assert longest_common_run(np.array(written, dtype=np.uint32), source) == longest


ATTRIBUTION = """
models = ["pdsw"]
domains = ["notes", "mail"]
method = "knn+ngram"
positions = 30
examples = 2
ngrams = [1, 2]
neighbours = 64
validation_tokens = 400
groups = { notes = "source" }
volume = "volume-1"
"""


def test_every_part_of_a_probability_has_an_origin(lab: Lab) -> None:
    _write_series(lab.data)
    (lab.recipes / "optout.toml").write_text(f'question = ""\npaper = ""\n{OPTOUT}')
    result = run_small(lab, "attribution", ATTRIBUTION)
    volume = result.facts["figures"]["pdsw"]["volume-1"]
    assert volume["same kind"]["value"] > volume["same kind by chance"]["value"]
    figures = result.facts["figures"]["pdsw"]["notes"]
    assert figures["from the model"]["value"] + figures["from restricted"]["value"] == pytest.approx(1)
    assert figures["same kind"]["value"] == figures["same kind by chance"]["value"] == 1
    assert "same kind" not in result.facts["figures"]["pdsw"]["mail"]
    examples = result.facts["examples"]["pdsw"]["mail"]
    assert len({example["prefix"] for example in examples}) == 2
    assert all(example["document"].startswith("mail-train") and example["license"] for example in examples)


def test_a_run_of_tokens_is_found_where_it_stands() -> None:
    document = np.array([5, 6, 7, 6, 8])
    assert contains(document, np.array([7, 6, 8]))
    assert not contains(document, np.array([6, 6]))
    assert not contains(document, np.arange(6))


RUNTIME = """
models = ["pdsw"]
domain = "notes"
methods = ["ric", "knn", "ngram", "knn+ngram"]
probes = [1]
rounds = 3
score_tokens = 200
new_tokens = 4
prompt_tokens = 20
neighbours = 64
validation_tokens = 400
store_tokens = { pdsw = [500, 0] }
"""


def test_all_methods_take_turns(lab: Lab) -> None:
    result = run_small(lab, "runtime", RUNTIME)
    found = result.facts["models"]["pdsw"]
    assert len(found) == 1 + 2 * 4 + 1
    assert found["lm"]["score_relative"] == {"value": 1.0, "low": None, "high": None}
    assert all(item["generate_rate"]["low"] > 0 and item["perplexity"]["value"] > 1 for item in found.values())
    assert sum(name.endswith("1 probes") for name in found) == 1


DOWNSTREAM = """
tasks = "../tasks"
models = ["pdsw", "all"]
methods = ["lm", "knn", "ngram", "knn+ngram", "ric"]
neighbours = 64
stores = { tone = "notes", topic = "mail", other = "nowhere" }
limits = { pdsw = 8 }
"""


def _write_tasks(folder: Path, stored: str) -> None:
    task = {"template": "{text} It was", "label_words": ["w1", "x2"], "domain_premise": " It was"}
    sets = {"fuzzy_verbalizer": {"w1": ["w1", "w3"], "x2": ["x2", "x4"]}}
    for name, more in (("tone", sets), ("topic", {}), ("other", {})):
        place = folder / name
        place.mkdir(parents=True)
        (place / "task.json").write_text(json.dumps({**task, **more}))
        examples = [{"text": words(7_000 + n, 14), "label": n % 2} for n in range(10)]
        write_jsonl(place / "validation.jsonl", examples)
        if name == "tone":
            write_jsonl(place / "test.jsonl", [*examples[:5], {"text": stored, "label": 0}])


def test_tasks_with_and_without_a_store_that_does_not_hold_them(lab: Lab) -> None:
    leaked = json.loads((lab.data / "notes.train.jsonl").read_text().splitlines()[0])["text"]
    _write_tasks(lab.data.parent / "tasks", leaked)
    result = run_small(lab, "downstream", DOWNSTREAM)
    pdsw = result.facts["models"]["pdsw"]
    assert set(pdsw["tasks"]) == {"tone", "topic"}
    assert set(pdsw["tasks"]["tone"]["rows"]) == {"lm", "lm, plain", "lm, pmi", "knn", "ngram", "knn+ngram", "ric"}
    rows = [pdsw["tasks"][name]["rows"]["knn"]["accuracy"]["value"] for name in ("tone", "topic")]
    assert pdsw["average"]["knn"]["value"] == pytest.approx(sum(rows) / 2)
    (place,) = lab.folder.glob("stores/pdsw-notes-all-tasks-*")
    held = {document.text for document in open_store(place).documents()}
    assert leaked not in held
    assert leaked in {document.text for document in open_store(lab.store("pdsw", "notes").fill()).documents()}
