"""`silo experiment`: the paper's tables and figures again, and a report of all of them."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError
from silo.experiments.run import EXPERIMENTS

if TYPE_CHECKING:
    from silo.experiments.harness.lab import Lab
    from silo.progress import Advance


def add_command(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo experiment NAME` and `silo experiment report`."""
    parser = nouns.add_parser(
        "experiment", parents=[common], help="the paper's tables and figures again, and a report of them"
    )
    names = ("report", *EXPERIMENTS)
    parser.add_argument("name", metavar="NAME", choices=names, help=f"report, or one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--data", metavar="DIR", help="a folder of DOMAIN.{train,validation,test}.jsonl[.zst]")
    parser.add_argument("--models", metavar="NAME,...", help="only these of the models that the experiment compares")
    parser.add_argument("--domains", metavar="NAME,...", help="these domains of the data, not those of the experiment")
    parser.add_argument("--quick", action="store_true", help="small numbers, on the Python packages of this machine")
    parser.add_argument("--work", metavar="DIR", help="where everything is made and kept; build/experiments without it")
    parser.add_argument("--kept", metavar="DIR", help="where measurements and results are kept, if not in --work")
    parser.add_argument("--out", metavar="DIR", help="where the report goes; docs/results without it")
    show.add_device(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from silo.experiments.harness.report import write_report
    from silo.experiments.run import find_experiment, run_experiment

    work = Path(arguments.work or ("build/experiments-quick" if arguments.quick else "build/experiments"))
    if arguments.name == "report":
        out = Path(arguments.out or (work / "report" if arguments.quick else "docs/results"))
        names = write_report(Path(arguments.kept or work) / "results", out, EXPERIMENTS)
        show.facts("report", {"experiments": names, "page": f"{out}/report.html"}, as_json=arguments.json)
        return 0
    find_experiment(arguments.name)
    with show.progress(quiet=arguments.quiet) as advance:
        result, place = run_experiment(_open_lab(arguments, work, advance), arguments.name)
    if arguments.json:
        show.print_json({"answer": result.answer, "results": str(place / "results.json"), **result.facts})
        return 0
    print(f"{result.question}\n{result.answer}\n")
    for table in result.tables:
        show.table(table.title, table.columns, [list(row) for row in table.rows])
    print(f"written to {place}")
    return 0


def _open_lab(arguments: argparse.Namespace, work: Path, advance: Advance) -> Lab:
    def talk(text: str) -> None:
        show.say(text, quiet=arguments.quiet)

    if arguments.quick:
        if arguments.data:
            raise SiloError("usage", "--quick reads the Python packages of this machine", "give --data or --quick")
        if arguments.models or arguments.domains:
            raise SiloError("usage", "--quick has its own models and domains", "leave out --models and --domains")
        if arguments.kept:
            raise SiloError("usage", "--quick keeps what it measures with all else", "give --kept or --quick")
        from silo.experiments.harness.quick import open_quick_lab

        return open_quick_lab(work, talk=talk, advance=advance)
    data = Path(arguments.data or "../shared/data")
    if not data.is_dir():
        hint = "give one with --data, or --quick for the Python packages of this machine"
        raise SiloError("input-missing", f"there is no folder of data at {data}", hint)
    kept = Path(arguments.kept) if arguments.kept else None

    from silo.experiments.harness.lab import Lab

    chosen = {"models": arguments.models, "domains": arguments.domains}
    only = {kind: names.split(",") for kind, names in chosen.items() if names}
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SiloError("not-writable", f"{work} cannot be a folder to work in: {error.strerror}") from error
    given = {"--data": arguments.data, "--work": arguments.work}
    named = "".join(f" {option} {shlex.quote(value)}" for option, value in given.items() if value)
    return Lab(work, data, kept=kept, only=only, named=named, talk=talk, advance=advance)
