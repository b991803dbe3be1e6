"""`silo demo` and `silo quickstart`: the whole idea in minutes, and the same path for a folder of one's own."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

from silo.cli import show


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add both commands."""
    demo = nouns.add_parser("demo", parents=[common], help="the whole idea, on the Python packages of this machine")
    demo.add_argument("--home", default="silo-demo", metavar="DIR", help="everything goes here")
    demo.add_argument("--reference", action="store_true", help="also train a model on everything, to compare with")
    show.add_device(demo)
    demo.set_defaults(run=_demo)
    quick = nouns.add_parser("quickstart", parents=[common], help="from a folder of documents to attributed text")
    quick.add_argument("folder", metavar="DIR", help="documents: text, PDF, Office, HTML, e-books, mail")
    quick.add_argument("--model", required=True, metavar="DIR", help="any model directory")
    quick.add_argument("--store", metavar="PATH", help="where the store goes; DIR.silo without it")
    quick.add_argument("--owner", default="", help="owner of the files")
    quick.add_argument("--license", default="", help="licence of the files; unknown without it")
    quick.add_argument("--prompt", metavar="TEXT", help="what to continue; the beginning of a file without it")
    quick.add_argument("--policy", default="", metavar="EXPR", help="which documents may take part")
    quick.add_argument("--guard", type=int, metavar="N", help="as for `silo generate`")
    quick.add_argument("--max-tokens", type=int, default=64, metavar="N", help="end after so many")
    show.add_device(quick)
    quick.set_defaults(run=_quickstart)


def _demo(arguments: argparse.Namespace) -> int:
    from silo.journeys.demo import run_demo
    from silo.journeys.demo_report import write_report

    home = Path(arguments.home)
    with show.progress(quiet=arguments.quiet) as advance:
        findings = run_demo(
            home,
            reference=arguments.reference,
            talk=lambda message: show.say(message, quiet=arguments.quiet),
            advance=advance,
        )
    report = home / "report.html"
    write_report(findings, report)
    if arguments.json:
        show.print_json({**findings.facts, "report": str(report)})
    else:
        _show(findings, report)
    return 0


def _show(findings: Any, report: Path) -> None:
    from silo.cli.painter import Painter

    facts = findings.facts
    rows = [[name, value] for name, value in facts["methods"].items()]
    show.table("perplexity on restricted files that nobody has seen", ("method", "perplexity"), rows)
    Painter().show(findings.answers["before"])
    gone = facts["opt_out"]
    values = gone["perplexity_on_their_files"]
    rows = [
        ["documents", str(gone["documents"])],
        ["no request finds them after", f"{gone['accepted_ms']:.0f} ms"],
        ["every byte is gone after", f"{gone['done_ms'] / 1000:.1f} s"],
        ["perplexity on their held-out files, model alone", f"{values['lm']:,.1f}"],
        ["with the store, before", f"{values['before']:,.1f}"],
        ["with the store, after", f"{values['after']:,.1f}"],
        ["receipt", "verifies" if not facts["proof"]["failed_checks"] else "fails"],
    ]
    show.table(f"{gone['owner']} opts out", ("what", "value"), rows)
    show.say(f"report: {report}")
    _say_page(report.parent / "models" / "demo", report.parent / "stores" / "demo")


def _say_page(model: Path, store: Path, *, quiet: bool = False) -> None:
    """How to see the same in a browser."""
    command = shlex.join(["silo", "serve", "--model", str(model), "--store", str(store)])
    show.say(f"in a browser: {command}", quiet=quiet)


def _quickstart(arguments: argparse.Namespace) -> int:
    from silo.cli.painter import Painter
    from silo.cli.predict import write
    from silo.inference.session import open_session
    from silo.journeys import quickstart
    from silo.sources import Tally

    folder, model = Path(arguments.folder).expanduser(), Path(arguments.model)
    place = Path(arguments.store) if arguments.store else quickstart.store_beside(folder)
    tally = Tally()
    with show.progress(quiet=arguments.quiet) as advance:
        added, unreadable = quickstart.fill_from_folder(
            folder, model, place, owner=arguments.owner, license=arguments.license, tally=tally, advance=advance
        )
    show.say(f"{place}: {added.added} documents added, {added.unchanged} were there", quiet=arguments.quiet)
    show.reading(tally.as_json(), quiet=arguments.quiet)
    show.some(
        "not read: ", [f"{item.where} ({item.code}: {item.message})" for item in unreadable], quiet=arguments.quiet
    )
    show.some("not taken: ", [f"{item.external_id} ({item.reason})" for item in added.refusals], quiet=arguments.quiet)
    session = open_session(model, place, policy=arguments.policy, threads=arguments.threads or 1)
    prompt = arguments.prompt or quickstart.first_words(session.predictor.stores[0])
    wish: dict[str, Any] = {"max_tokens": arguments.max_tokens, "guard": arguments.guard}
    answer = write(session, prompt, None if arguments.json else Painter(), **wish)
    if arguments.json:
        left_out = [item.as_json() for item in unreadable]
        filled = {"store": str(place), "added": added.added, "quarantined_records": left_out, **tally.as_json()}
        show.print_json({**filled, "prompt": prompt, **answer.as_json()})
    _say_page(model, place, quiet=arguments.quiet)
    return 0
