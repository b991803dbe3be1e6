"""`silo`: noun, verb, options; two-line errors, stable exit statuses, and nothing heavy imported before its time."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from typing import NoReturn

from silo import __version__
from silo.cli import ask, corpus, demo, doctor, evaluate, lm, predict, receipt, show, store
from silo.cli.arguments import completion
from silo.cli.arguments.config import Defaults
from silo.cli.arguments.parser import Parser, add_examples
from silo.cli.credits import add_command as add_credits
from silo.cli.experiment import add_command as add_experiment
from silo.cli.serving import keys, mcp, serve
from silo.errors import ExitStatus, SiloError
from silo.placement import Placement, ask_for

_EPILOG = """exit status: 0 success, 1 a bug in silo, 2 bad usage, 3 bad input, 4 damaged artefact, 5 refused,
6 something is not installed, 7 busy, 8 out of disk or memory, 10 seen and 11 near copy seen (silo lm saw),
12 not in the store (silo ask), 130 interrupted. docs/errors.md lists all codes."""


def build_parser() -> Parser:
    """All nouns and verbs."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    common.add_argument("--quiet", action="store_true", help="no progress and no talk on stderr")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser = Parser(prog="silo", description="Language models that keep legal risk out of the weights.", epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"silo {__version__}")
    nouns = parser.add_subparsers(dest="noun", metavar="COMMAND", required=True)
    demo.add_commands(nouns, common)
    corpus.add_commands(nouns, common)
    lm.add_commands(nouns, common)
    store.add_commands(nouns, common)
    ask.add_commands(nouns, common)
    predict.add_commands(nouns, common)
    evaluate.add_commands(nouns, common)
    receipt.add_commands(nouns, common)
    add_credits(nouns, common)
    serve.add_command(nouns, common)
    mcp.add_command(nouns, common)
    keys.add_commands(nouns, common)
    add_experiment(nouns, common)
    doctor.add_command(nouns, common)
    completion.add_command(nouns, common, parser)
    add_examples(parser)
    return parser


def parse(given: list[str]) -> argparse.Namespace:
    """The arguments of a command: what is typed, what `silo.toml` and the environment state, and defaults."""
    parser = build_parser()
    defaults = Defaults(parser, warn=show.say)
    return defaults.fill_in(parser.parse_args(given))


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        parsed = parse(given)
        ask_for(
            Placement(getattr(parsed, "device", None) or "", getattr(parsed, "dtype", None) or ""),
            threads=getattr(parsed, "threads", None) or 0,
        )
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except SiloError as error:
        return _complain(error, given)
    except KeyboardInterrupt:
        return _complain(SiloError("interrupted", "stopped by the user"), given)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitStatus.OK)
    except MemoryError:
        return _complain(SiloError("out-of-memory", "not enough memory"), given)
    except Exception as error:  # whatever else happens, the user reads two lines and a script gets a status
        return _complain(SiloError("internal", f"{type(error).__name__}: {error}"), given)
    return status


def _complain(error: SiloError, given: list[str]) -> int:
    if "--debug" in given:
        print(show.visible(traceback.format_exc(), keep="\n"), end="", file=sys.stderr)
    if "--json" in given:
        print(json.dumps({"error": error.as_json()}))
    return show.complain(error)


def entry() -> NoReturn:
    """The console script."""
    sys.exit(main())
