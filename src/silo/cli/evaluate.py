"""`silo eval ppl|tasks|harness`: how good a model is, with and without stores."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.cli.predict import add_model_options, predictor_from_options
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
    for name, add, text in (
        ("ppl", _add_ppl, "perplexity by domain and method, with intervals and honest baselines"),
        ("tasks", _add_tasks, "accuracy on zero-shot classification tasks"),
        ("harness", _add_harness, "tasks of lm-evaluation-harness"),
    ):
        add(verbs.add_parser(name, parents=[common], help=text))


def _add_ppl(parser: argparse.ArgumentParser) -> None:
    several = {"nargs": "+", "action": "extend", "default": [], "metavar": "FILE"}
    parser.add_argument("--model", required=True, metavar="DIR", help="the language model")
    parser.add_argument("--store", action="append", default=[], metavar="PATH", help="a store; may be repeated")
    parser.add_argument(
        "--reference", action="append", default=[], metavar="DIR", help="a model to compare with; may be repeated"
    )
    parser.add_argument("--method", metavar="M1,M2", help="some of lm, ric, knn, ngram, knn+ngram; all that is offered")
    parser.add_argument("--jsonl", required=True, **several, help="text to score, by domain")  # type: ignore[arg-type]
    parser.add_argument(
        "--validation",
        **several,  # type: ignore[arg-type]
        help="text to choose settings on, of the same domain, or of all where a domain has none; defaults without it",
    )
    parser.add_argument("--settings", metavar="NAME", help="settings saved by `silo store tune`")
    parser.add_argument("--tokens", type=int, default=0, metavar="N", help="about so many of each domain; all")
    parser.add_argument(
        "--document-tokens", type=int, default=0, metavar="N", help="of every document its first N tokens; all"
    )
    parser.add_argument("--validation-tokens", type=int, default=40_000, metavar="N", help="of each validation text")
    parser.add_argument("--k", type=int, default=1024, metavar="N", help="the most neighbours to try")
    parser.add_argument(
        "--fine-tune",
        choices=("auto", "yes", "no"),
        default="auto",
        help="adapt the weights to the stores' text for comparison; auto: where that takes minutes",
    )
    parser.add_argument("--encoder", metavar="DIR", help="the model of the stores' keys, if it has moved")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the intervals' draws")
    parser.add_argument("--documents", metavar="FILE", help="write the figures of every document here, as JSON lines")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    show.add_verify(parser)
    show.add_device(parser)
    parser.set_defaults(run=_ppl)


def _ppl(arguments: argparse.Namespace) -> int:
    from silo.inference.settings import Settings, parse_method

    files, validation = ([Path(name) for name in names] for names in (arguments.jsonl, arguments.validation))
    for file in [*files, *validation]:
        if not file.is_file():
            raise SiloError("input-missing", f"there is no evaluation file at {file}")
    for option, least in (("tokens", 0), ("document_tokens", 0), ("validation_tokens", 1), ("seed", 0), ("k", 1)):
        if getattr(arguments, option) < least:
            raise SiloError("usage", f"--{option.replace('_', '-')} is at least {least}")
    Settings(k=arguments.k)
    figures_file = show.output_file(arguments.documents)
    asked = [name for name in (arguments.method or "").split(",") if name]
    for name in asked:
        parse_method(name)

    from silo.evaluation.perplexity import PplOptions, evaluate_perplexity

    options = PplOptions(
        stores=tuple(map(Path, arguments.store)),
        references=tuple(map(Path, arguments.reference)),
        methods=tuple(asked),
        files=tuple(files),
        validation=tuple(validation),
        settings=arguments.settings or "",
        tokens=arguments.tokens,
        document_tokens=arguments.document_tokens,
        validation_tokens=arguments.validation_tokens,
        neighbours=arguments.k,
        fine_tune=arguments.fine_tune,
        encoder=Path(arguments.encoder) if arguments.encoder else None,
        seed=arguments.seed,
        verify=arguments.verify,
    )
    show.note_compiling(quiet=arguments.quiet)
    with show.progress(quiet=arguments.quiet) as advance:
        figures, documents = evaluate_perplexity(Path(arguments.model), show.home(arguments), options, advance=advance)
    if figures_file:
        _write_lines(figures_file, documents)
    if arguments.json:
        show.print_json(figures)
    else:
        _show_ppl(figures)
    return 0


def _write_lines(file: Path, items: Iterable[Mapping[str, Any]]) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(item) + "\n" for item in items)


def _show_ppl(figures: Mapping[str, Any]) -> None:
    """One table for each domain, and the averages of what closes a gap."""
    for domain, found in figures["domains"].items():
        bins = [name for name, count in found["matches"].items() if count]
        rows = [
            [
                row,
                _estimate(item["perplexity"]),
                _estimate(item["bits_per_byte"], 3),
                _estimate(item.get("ratio_to_lm"), 3),
                _estimate(item.get("gap_closed"), 0, 100),
                *(f"{item['by_match'][name]['value']:.1f}" for name in bins),
            ]
            for row, item in found["rows"].items()
        ]
        shares = [f"{name} ({100 * found['matches'][name] / found['tokens']:.0f} %)" for name in bins]
        title = f"{domain} ({found['mark']}): {found['tokens']:,} tokens of {found['documents']:,} documents"
        columns = ("row", "perplexity", "bits per byte", "ratio to lm", "gap closed, %")
        show.table(title, (*columns, *(f"match {share}" for share in shares)), rows)
    averages = [
        [row, _estimate(item["all"], 0, 100), _estimate(item["clean"], 0, 100)]
        for row, item in figures["average_gap_closed"].items()
    ]
    if averages:
        show.table(
            "gap closed, of the domains' mean perplexity", ("row", "all tokens, %", "match of at most 12, %"), averages
        )
    for note in figures["notes"]:
        print(note)


def _estimate(found: Mapping[str, Any] | None, digits: int = 1, scale: float = 1.0) -> str:
    """A value with its interval."""
    if not found or found["value"] is None:
        return ""
    value, low, high = (None if found[name] is None else scale * found[name] for name in ("value", "low", "high"))
    span = "" if low is None or high is None else f" ({low:.{digits}f} to {high:.{digits}f})"
    return f"{value:.{digits}f}{span}"


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
    parser.add_argument("--k", type=int, default=4096, metavar="N", help="the most neighbours to try")
    parser.add_argument("--ric", choices=show.RIC_VARIANTS, help="how passages stand before the text; basic")
    parser.add_argument("--passages", type=int, metavar="N", help="passages for ensemble and concat; 1")
    parser.add_argument("--encoder", metavar="DIR", help="the model of the stores' keys, if it has moved")
    parser.add_argument("--policy", default="", metavar="EXPR", help="which documents may take part")
    parser.add_argument("--examples", metavar="FILE", help="write the label of every example here, as JSON lines")
    show.add_verify(parser)
    show.add_device(parser)
    parser.set_defaults(run=_tasks)


def _tasks(arguments: argparse.Namespace) -> int:
    from silo.evaluation.tasks.task import load_tasks

    tasks = load_tasks([Path(place) for place in arguments.tasks], split=arguments.split)
    options = _task_options(arguments)
    examples_file = show.output_file(arguments.examples)

    from silo.cli.predict import warn_of_policy
    from silo.evaluation.tasks.evaluate import evaluate_tasks
    from silo.evaluation.tasks.report import describe_examples, report

    predictor = _open_predictor(arguments, options)
    warn_of_policy(predictor)
    show.note_compiling(quiet=arguments.quiet)
    with show.progress(quiet=arguments.quiet) as advance:
        results = list(evaluate_tasks(predictor, tasks, options, advance=advance))
    origin = {"model": arguments.model, "stores": arguments.store, "limit": options.limit or None}
    figures = {**origin, **report(results, seed=options.seed)}
    if examples_file:
        _write_lines(examples_file, describe_examples(results))
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
        _difference(difference["value"], _span(difference["interval"], "+.1f")) if difference else "",
        _settings_text(found.get("settings", {})),
    ]


def _difference(value: float, span: str) -> str:
    return f"{100 * value:+.1f} ({span})" if span else f"{100 * value:+.1f}"


def _percent(found: Mapping[str, Any] | None) -> str:
    return f"{100 * found['accuracy']:.1f}" if found else ""


def _span(interval: Sequence[float | None], form: str = ".1f") -> str:
    return " to ".join(f"{100 * value:{form}}" for value in interval if value is not None)


def _settings_text(settings: Any) -> str:
    if isinstance(settings, list):
        return " / ".join(map(_settings_text, settings))
    return " ".join(f"{_SHORT[name]}{value:g}" for name, value in settings.items())


def _add_harness(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--tasks", required=True, metavar="T1,T2", help="names that the harness or --include knows")
    parser.add_argument(
        "--include", action="append", default=[], metavar="DIR", help="a folder of task files; may be repeated"
    )
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="so many documents of each task; all")
    parser.add_argument("--fewshot", type=int, metavar="N", help="examples before each; what the task says")
    parser.set_defaults(run=_harness)


def _harness(arguments: argparse.Namespace) -> int:
    names = tuple(name for name in arguments.tasks.split(",") if name)
    folders = tuple(map(Path, arguments.include))
    for folder in folders:
        if not folder.is_dir():
            raise SiloError("input-missing", f"there is no folder of tasks at {folder}")
    if not names or arguments.limit < 0 or (arguments.fewshot or 0) < 0:
        raise SiloError("usage", "name a task with --tasks; numbers are not negative")
    if not Path(arguments.model).is_dir():
        raise SiloError("input-missing", f"there is no model at {arguments.model}")
    try:
        from silo.journeys.harness import HarnessOptions, evaluate_harness, find_tasks
    except ModuleNotFoundError as error:
        hint = "install it with: pip install 'silo-lm[lm-eval]'"
        raise SiloError("extra-missing", f"the harness needs {error.name}", hint) from None

    options = HarnessOptions(names, folders, arguments.limit, arguments.fewshot)
    tasks = find_tasks(options)
    predictor = predictor_from_options(arguments)
    with show.progress(quiet=arguments.quiet) as advance:
        found = evaluate_harness(predictor, options, tasks, advance=advance)
    if arguments.json:
        show.print_json(found)
        return 0
    for name, figures in found["results"].items():
        metrics = {key.removesuffix(",none"): value for key, value in figures.items() if isinstance(value, float | int)}
        show.table(name, ("metric", "value"), [[key, f"{value:.4f}"] for key, value in metrics.items()])
    return 0
