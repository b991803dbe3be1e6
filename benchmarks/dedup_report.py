"""The dedup benchmark's report as markdown."""

from __future__ import annotations

from typing import Any

NOTES = """## What is and is not comparable

- All systems but MinHash ask one question: is {threshold} of a document's {ngram}-grams known from earlier documents?
  All run single-threaded in a fresh process, read the same uncompressed JSONL and get room for one n-gram per
  {bytes_per_ngram} bytes. silo runs {silo_runs} times, dolma {dolma_runs}, datatrove {datatrove_runs} (medians).
- Ten documents are repeated at the end of the text: the benchmark stops if a system does not report all of them.
- MB/s per core is after subtracting a run on 20 documents with the same settings. Reading JSON is included everywhere;
  dolma also writes an attribute per document and its filter, which it cannot leave out.
- dolma works on paragraphs; a separator that never occurs makes a document one paragraph. Its words keep their case,
  and punctuation counts as words. "dolma" is sized for a false-positive rate of {false_positive_rate}; "7 hashes" has
  as many as silo has probes, which is faster and errs more. It counts an n-gram repeated within one document as seen,
  so repetitive documents become duplicates of themselves. Its hash seeds are random: runs may differ slightly.
- datatrove splits words with spaCy (its default for English), hashes to 32 bits, keeps documents shorter than an
  n-gram, and wants more than the threshold. Its folding of numbers and accents is switched off for the Bloom filter,
  as the others do neither. Its size is also its mask, so it must be a power of two less one.
- Both peers keep the n-grams of documents they drop; silo and the exact set do not.
- MinHash asks how much two documents resemble each other (5-grams, about 0.72): an excerpt is no duplicate to it.
- Edits scattered over 2 % of the words break about a fifth of all {ngram}-grams: with a threshold of {threshold} such
  copies are on the border for every filter of this kind, the exact set included; from 5 % on they are not duplicates.

Again: `python benchmarks/dedup.py` (`--help` lists the options; `--peers-python` uses an environment you have).
"""


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    speed, settings, machine = report["speed"], report["settings"], report["machine"]
    ratio = speed["ratio_to_faster_peer"]
    verdict = "met" if speed["met"] else "missed"
    return "\n".join(
        (
            "# Near-duplicate removal against dolma and datatrove",
            "",
            f"silo is **{ratio['per_core']:.1f} times** as fast per core as the faster peer (bar {speed['bar']:g}: "
            f"{verdict}); {ratio['per_core_with_startup']:.1f} times with start-up counted.",
            "",
            f"{settings['megabytes']:.1f} MB of text, {settings['documents']} documents ({settings['text']}). "
            + ", ".join(f"{name} {value}" for name, value in machine.items())
            + ".",
            "",
            *_speed_table(speed),
            "",
            *_agreement_lines(report["agreement"]),
            "",
            NOTES.format(**settings),
        )
    )


def _speed_table(speed: dict[str, Any]) -> list[str]:
    rows = [
        "| system | MB/s per core | with start-up | wall, with start-up | deciding alone | start-up (CPU s) | found |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in speed["systems"]:
        alone = f"{one['filter_alone']:.2f}" if one["filter_alone"] else "not separable"
        rows.append(
            f"| {one['system']} | **{one['per_core']:.2f}** | {one['per_core_with_startup']:.2f} "
            f"| {one['wall_with_startup']:.2f} | {alone} | {one['startup_seconds']:.1f} | {one['duplicates']} |"
        )
    return [
        *rows,
        "",
        f"Compiling silo's kernels, once per machine: {speed['numba_compile_seconds']:.1f} CPU s, not counted.",
    ]


def _agreement_lines(report: dict[str, Any]) -> list[str]:
    planted, found = report["planted"], report["found_text"]
    own = found["against_exact"]["silo"]
    systems = list(next(iter(planted["found_by_case"].values())))
    rows = [
        "## The same documents as an exact set",
        "",
        f"Text as found ({found['megabytes']:.1f} MB, {found['documents']} documents): the exact set calls "
        f"{found['exact_duplicates']} duplicates; silo's precision is {own['precision']:.4f}, its recall "
        f"{own['recall']:.4f}.",
        "",
        f"Planted ({planted['documents']} documents, {planted['exact_duplicates']} duplicates by the exact set):",
        "",
        "| against the exact set | precision | recall |",
        "|---|---|---|",
    ]
    rows += [
        f"| {name} | {one['precision']:.4f} | {one['recall']:.4f} |" for name, one in planted["against_exact"].items()
    ]
    rows += [
        "",
        f"| called a duplicate, of what was planted | {' | '.join(systems)} |",
        "|---" * (len(systems) + 1) + "|",
    ]
    for case, shares in planted["found_by_case"].items():
        rows.append(f"| {case} | {' | '.join(f'{shares[name]:.0%}' for name in systems)} |")
    alarms = " | ".join(str(planted["false_alarms"][name]) for name in systems)
    return [*rows, f"| false alarms among {planted['strangers']} originals and unrelated documents | {alarms} |"]
