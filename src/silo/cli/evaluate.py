"""`silo eval tasks`: how good a model is, with and without stores."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.evaluation.tasks.evaluate import TaskOptions
    from silo.inference.predict import Predictor
    from silo.inference.settings import Settings

_SHORT = {"k": "k ", "tau": "tau ", "lambda": "lambda ", "ngram_strength": "ngram "}


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo eval` and its verbs."""
    noun = nouns.add_parser("eval", help="how good is a model, with and without stores?")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, add, text in (("tasks", _add_tasks, "accuracy on zero-shot classification tasks"),):
        add(verbs.add_parser(name, parents=[common], help=text))


def _add_tasks(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="the language model")
    parser.add_argument("--store", action="append", default=[], metavar="PATH", help="a store; may be repeated")
    parser.add_argument(
        "--tasks", nargs="+", required=True, metavar="DIR", help="a folder of task folders, or one task"
    )
    parser.add_argument(
        "--method",
        action="append",
        default=[],
        metavar="M",
        help="lm, knn, ngram, knn+ngram, ric; may be repeated; all that the stores offer",
    )
    parser.add_argument("--split", choices=("test", "validation"), help="what is reported; test where there is one")
    parser.add_argument(
        "--limit", type=int, default=0, metavar="N", help="at most N examples of each split, drawn by the seed"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of samples, halves and intervals")
    parser.add_argument("--shots", type=int, default=0, choices=(0,), help="examples in the prompt: none")
    parser.add_argument("--expand", action="store_true", help="more rows: word sets from the model's embeddings")
    parser.add_argument(
        "--settings", metavar="NAME", help="settings saved by `silo store tune`; nothing is chosen then"
    )
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument("--k", type=int, default=4096, help="the most neighbours to try")
    parser.add_argument("--ric", metavar="VARIANT", help="basic, ensemble, concat or concat-next")
    parser.add_argument("--passages", type=int, metavar="N", help="passages for ensemble and concat")
    parser.add_argument("--encoder", metavar="DIR", help="the model of the stores' keys, if it has moved")
    parser.add_argument("--policy", default="", metavar="EXPR", help="which documents may take part")
    show.add_verify(parser)
    parser.set_defaults(run=_tasks)


def _tasks(arguments: argparse.Namespace) -> int:
    from silo.evaluation.tasks.task import load_tasks

    tasks = load_tasks([Path(place) for place in arguments.tasks], split=arguments.split)
    options = _task_options(arguments)

    from silo.evaluation.tasks.evaluate import evaluate_tasks
    from silo.evaluation.tasks.report import report

    predictor = _open_predictor(arguments, options)
    with show.progress(quiet=arguments.quiet) as advance:
        results = list(evaluate_tasks(predictor, tasks, options, advance=advance))
    origin = {"model": arguments.model, "stores": arguments.store, "limit": options.limit or None}
    figures = {**origin, **report(results, seed=options.seed)}
    if arguments.json:
        show.print_json(figures)
    else:
        _show_tasks(figures)
    return 0


def _task_options(arguments: argparse.Namespace) -> TaskOptions:
    """What the options ask for; whatever is wrong with them is found before a model is opened."""
    from silo.evaluation.tasks.evaluate import TaskOptions
    from silo.inference.settings import load_settings, parse_method

    if arguments.limit < 0 or arguments.seed < 0:
        raise SiloError("usage", "--limit and --seed are not negative")

    def named(method: frozenset[str]) -> Settings:
        return load_settings(show.home(arguments), arguments.settings, method)

    methods = _methods(arguments)
    if arguments.settings:
        for method in methods:
            named(parse_method(method))
    return TaskOptions(
        methods=methods,
        split=arguments.split or "",
        limit=arguments.limit,
        seed=arguments.seed,
        expand=arguments.expand,
        settings=named if arguments.settings else None,
    )


def _methods(arguments: argparse.Namespace) -> tuple[str, ...]:
    """Those that are asked for, or all that the stores offer; the language model alone is always one of them."""
    from silo.evaluation.tasks.evaluate import METHODS
    from silo.inference.settings import parse_method

    offered = _offered(arguments.store)
    given = {name: parse_method(name) for name in dict.fromkeys(arguments.method)}
    for name, parts in given.items():
        if parts and not arguments.store:
            raise SiloError("usage", f"the method {name} needs a store", "give one with --store")
        if lacking := parts - offered:
            raise SiloError("search-missing", f"no store offers what {min(lacking)} needs")
    names = given or {name: parse_method(name) for name in METHODS if parse_method(name) <= offered}
    return tuple(dict.fromkeys(["lm", *names]))


def _offered(stores: Sequence[str]) -> set[str]:
    """What methods are made of, as far as the stores have the search for it."""
    from silo.pairing import open_store

    found: set[str] = set()
    for path in stores:
        store = open_store(Path(path))
        found |= {"ric" if search == "bm25" else search for search in store.config.searches}
        store.close()
    return found


def _open_predictor(arguments: argparse.Namespace, options: TaskOptions) -> Predictor:
    """A model and stores with the searches of all methods."""
    from silo.inference.predict import open_predictor
    from silo.inference.settings import Ric, Settings, parse_method
    from silo.store.policy import Policy

    given = {"variant": arguments.ric, "passages": arguments.passages}
    ric = Ric(**{name: value for name, value in given.items() if value is not None})
    searches = {method: parse_method(method) for method in options.methods}
    most = max(options.settings(parts).k for parts in searches.values()) if options.settings else arguments.k
    return open_predictor(
        arguments.model,
        arguments.store,
        method="+".join(sorted(frozenset().union(*searches.values()))) or "lm",
        settings=Settings(k=most, ric=ric),
        policy=Policy.parse(arguments.policy),
        encoder=arguments.encoder,
        verify=arguments.verify,
    )


def _show_tasks(figures: Mapping[str, Any]) -> None:
    """One line for each task and method, the averages, and what one must know to read them."""
    variants = list(dict.fromkeys(name for task in figures["tasks"].values() for name in _rows_of(task)))
    rows = [
        [name, task["n"], method, *_line(found), *(_percent(found["rows"].get(variant)) for variant in variants)]
        for name, task in figures["tasks"].items()
        for method, found in task["methods"].items()
    ]
    averages = [
        ["average", None, method, *_line(found), *("" for _ in variants)]
        for method, found in figures["average"].items()
    ]
    columns = ("task", "n", "method", "accuracy", "95 %", "against lm", "settings", *variants)
    show.table("accuracy in %", columns, [*rows, *(averages if len(figures["tasks"]) > 1 else [])])
    notes = [
        [
            name,
            f"{task['split']}; headline {next(iter(task['methods'].values()))['headline']}",
            "; ".join(task["marks"]),
        ]
        for name, task in figures["tasks"].items()
    ]
    show.table("how the tasks were read", ("task", "reported", "marks"), notes)


def _rows_of(task: Mapping[str, Any]) -> list[str]:
    return list(next(iter(task["methods"].values()))["rows"])


def _line(found: Mapping[str, Any]) -> list[str]:
    difference = found.get("difference_to_lm")
    return [
        _percent(found),
        _span(found["interval"]),
        f"{100 * difference['value']:+.1f} ({_span(difference['interval'], '+.1f')})" if difference else "",
        _settings_text(found.get("settings", {})),
    ]


def _percent(found: Mapping[str, Any] | None) -> str:
    return f"{100 * found['accuracy']:.1f}" if found else ""


def _span(interval: Sequence[float], form: str = ".1f") -> str:
    return " to ".join(f"{100 * value:{form}}" for value in interval)


def _settings_text(settings: Any) -> str:
    if isinstance(settings, list):
        return " / ".join(map(_settings_text, settings))
    return " ".join(f"{_SHORT[name]}{value:g}" for name, value in settings.items())
