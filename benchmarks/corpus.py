"""Build the experiments' corpus and report its tiers against the files' own, and speed and memory per stage.

    python benchmarks/corpus.py [--recipe recipes/shared-data.toml] [--out build/shared-corpus]

Exits with 1 if memory passes 2 GB or the books do not balance. Needs ../shared; says so where it is missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from silo.corpus.build import build
from silo.corpus.corpus import Corpus
from silo.corpus.shards import read_lines
from silo.recipe import CorpusRecipe, Limits, load_recipe
from silo.records import Candidate, Tier, document_id
from silo.sources import plan, read

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
MEMORY_BAR_MB = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "shared-data.toml")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "shared-corpus")
    parser.add_argument("--keep", action="store_true", help="reuse a corpus that is there (its times are kept)")
    arguments = parser.parse_args()
    if not (ROOT.parent / "shared" / "data").is_dir():
        print("../shared/data is not here: nothing to measure")
        return 0
    recipe = load_recipe(arguments.recipe, CorpusRecipe)
    if not arguments.keep and arguments.out.exists():
        shutil.rmtree(arguments.out)
    summary = build(recipe, arguments.out, base=arguments.recipe.absolute().parent, advance=show)
    result = {**summary, "out": arguments.out.name, "tier_changes": tier_changes(recipe, arguments)}
    result["machine"] = {"python": platform.python_version(), "cores": summary["workers"], "cpu": cpu_name()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "corpus.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    (RESULTS / "corpus.md").write_text(page(result))
    print(page(result))
    return 0 if summary["peak_memory_mb"] < MEMORY_BAR_MB else 1


def show(stage: str, done: int, total: int) -> None:
    print(f"\r{stage} {100 * done // max(total, 1)} %   ", end="", file=sys.stderr, flush=True)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def stated_tiers(recipe: CorpusRecipe, base: Path) -> dict[str, tuple[str, str, str]]:
    """Document id -> the tier and licence its own record states, and its external id."""
    found: dict[str, tuple[str, str, str]] = {}
    for source in recipe.source:
        for part in plan(source, base):
            for item in read(part, Limits()):
                if isinstance(item, Candidate):
                    stated = item.evidence[0].asserted if item.evidence else ""
                    found[document_id(item.source, item.external_id)] = (item.stated_tier, stated, item.external_id)
    return found


def tier_changes(recipe: CorpusRecipe, arguments: argparse.Namespace) -> dict[str, Any]:
    """Accepted documents per stated and given tier, and every kind of difference with an example."""
    stated = stated_tiers(recipe, arguments.recipe.absolute().parent)
    matrix: Counter[tuple[str, str]] = Counter()
    changes: dict[tuple[str, str, str, str], list[str]] = {}
    for shard in Corpus.open(arguments.out).shards():
        for line in read_lines(shard.root / f"{shard.stem}.jsonl.zst"):
            record = json.loads(line)
            own, terms, external = stated[record["id"]]
            matrix[own, record["tier"]] += 1
            if own != record["tier"]:
                changes.setdefault((own, record["tier"], terms, record["license"]), []).append(external)
    return {
        "matrix": {f"{own} -> {given}": count for (own, given), count in sorted(matrix.items())},
        "changes": [
            {"stated": own, "given": given, "license": terms, "read_as": spdx, "documents": len(ids), "for": min(ids)}
            for (own, given, terms, spdx), ids in sorted(changes.items(), key=lambda item: -len(item[1]))
        ],
    }


def page(result: dict[str, Any]) -> str:
    """The result as a page of docs/results."""
    lines = [
        "# The experiments' corpus",
        "",
        "Made by `python benchmarks/corpus.py` from `recipes/shared-data.toml`; numbers in `corpus.json`.",
        f"{result['machine']['cpu']}, {result['workers']} processes, Python {result['machine']['python']}.",
        "",
        f"Read {result['read']:,} = accepted {result['accepted']:,} + rejected {result['rejected']:,} + quarantined "
        f"{result['quarantined']:,}. {result['tokens']:,} tokens, {result['bytes'] / 1e6:,.1f} MB of text, "
        f"{result['seconds'] / 60:.1f} minutes, peak memory {result['peak_memory_mb']:,.0f} MB (all processes added).",
        "",
        "| rejected because | documents |",
        "|---|---:|",
        *(f"| {reason} | {count:,} |" for reason, count in result["reasons"].items()),
        "",
        "## Stages",
        "",
        "| stage | wall seconds | core seconds | MB of text | MB/s per core |",
        "|---|---:|---:|---:|---:|",
    ]
    names = ("seconds", "core_seconds", "megabytes", "mb_per_core_second")
    for stage, row in result["stages"].items():
        lines.append(f"| {stage} | " + " | ".join(f"{row[name]:,}" if name in row else "" for name in names) + " |")
    rates = [row["false_positive_rate"] for row in result["bloom"].values() if row]
    lines += ["", f"Highest false-positive rate of a near-duplicate filter: {max(rates):.1e}.", "", "## Tiers", ""]
    lines += ["| tier | accepted |", "|---|---:|"]
    lines += [f"| {tier} | {result['tiers'][tier]:,} |" for tier in Tier]
    lines += ["", "Where a document's tier differs from the one its record states:", ""]
    lines += [
        "| stated | given | licence in the record | read as | documents | for example |",
        "|---|---|---|---|---:|---|",
    ]
    for row in result["tier_changes"]["changes"]:
        fields = ("stated", "given", "license", "read_as", "documents", "for")
        lines.append("| " + " | ".join(str(row[name]) for name in fields) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
