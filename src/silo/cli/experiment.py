"""`silo experiment`: the paper's tables and figures again, and a report of all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from silo.cli import show
from silo.errors import SiloError


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo experiment NAME` and `silo experiment report`."""
    parser = nouns.add_parser(
        "experiment", parents=[common], help="the paper's tables and figures again, and a report of them"
    )
    parser.add_argument("name", metavar="NAME", help="one of those in docs/experiments.md, or report")
    parser.add_argument("--data", metavar="DIR", help="a folder of DOMAIN.{train,validation,test}.jsonl[.zst]")
    parser.add_argument("--work", default="build/experiments", metavar="DIR", help="where everything is made and kept")
    parser.add_argument("--out", default="docs/results", metavar="DIR", help="where the report goes")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from silo.experiments.lab import Lab
    from silo.experiments.report import write_report
    from silo.experiments.run import run_experiment

    work = Path(arguments.work)
    if arguments.name == "report":
        names = write_report(work / "results", Path(arguments.out))
        show.facts("report", {"experiments": names, "page": f"{arguments.out}/report.html"}, as_json=arguments.json)
        return 0
    data = Path(arguments.data or "../shared/data")
    if not data.is_dir():
        raise SiloError("input-missing", f"there is no folder of data at {data}", "give one with --data")
    with show.progress(quiet=arguments.quiet) as advance:
        lab = Lab(work, data, talk=lambda text: show.say(text, quiet=arguments.quiet), advance=advance)
        result, place = run_experiment(lab, arguments.name)
    if arguments.json:
        show.print_json({"answer": result.answer, "results": str(place / "results.json"), **result.facts})
        return 0
    print(f"{result.question}\n{result.answer}\n")
    for table in result.tables:
        show.table(table.title, table.columns, [list(row) for row in table.rows])
    print(f"written to {place}")
    return 0
