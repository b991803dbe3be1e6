"""`silo score` and `silo generate`: a model, any number of stores, numbers or text, and who contributed."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from silo.cli import show

if TYPE_CHECKING:
    from silo.cli.painter import Painter
    from silo.inference.answer import Answer
    from silo.inference.predict import Predictor
    from silo.inference.session import Session
    from silo.inference.settings import Settings
    from silo.lm.engine.weights import Storage


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo score` and `silo generate`."""
    _add_score(nouns.add_parser("score", parents=[common], help="perplexity with a model and stores"))
    _add_generate(nouns.add_parser("generate", parents=[common], help="text, and who contributed to it"))


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """The options of a model with stores."""
    parser.add_argument("--model", required=True, metavar="DIR", help="the language model")
    parser.add_argument("--store", action="append", default=[], metavar="PATH", help="a store; may be repeated")
    parser.add_argument("--method", metavar="M", help="lm, or knn, ngram and ric joined by +; what the stores offer")
    parser.add_argument("--encoder", metavar="DIR", help="the model of the stores' keys, if it has moved")
    parser.add_argument("--settings", metavar="NAME", help="settings saved by `silo store tune`")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument("--policy", default="", metavar="EXPR", help="""for example 'tier <= "by" and owner != "x"'""")
    parser.add_argument(
        "--lambda", dest="lam", type=float, metavar="W", help="fixed weight of the neighbours; a gate without it"
    )
    parser.add_argument("--k", type=int, metavar="N", help="neighbours; 1024 where no settings say otherwise")
    parser.add_argument("--tau", type=float, metavar="T", help="temperature of the neighbours' distances; by the codec")
    parser.add_argument("--probes", type=int, metavar="N", help="lists that a token search reads; 8")
    parser.add_argument("--skip", type=float, metavar="P", help="no token search where the LM is at least so sure")
    parser.add_argument("--ric", choices=show.RIC_VARIANTS, help="how passages stand before the text; basic")
    parser.add_argument("--passages", type=int, metavar="N", help="passages for ensemble and concat; 1")
    parser.add_argument("--weighting", choices=("uniform", "score"), help="of an ensemble's passages; uniform")
    parser.add_argument("--query-tokens", type=int, metavar="N", help="RIC: tokens of the query; as many as a stride")
    parser.add_argument(
        "--ric-stride", type=int, metavar="N", help="RIC: tokens between two lookups; a quarter of the context"
    )
    show.add_verify(parser)
    show.add_device(parser)


def predictor_from_options(
    arguments: argparse.Namespace,
    *,
    guard: int | None = None,
    threads: int | None = None,
    storage: Storage = "auto",
) -> Predictor:
    """What the options name; `guard` is what the stores must be fit for."""
    from silo.inference.predict import open_predictor
    from silo.store.policy import Policy

    predictor = open_predictor(
        arguments.model,
        arguments.store,
        method=arguments.method,
        settings=lambda method: _settings(arguments, method),
        policy=Policy.parse(arguments.policy),
        encoder=arguments.encoder,
        guard=guard,
        threads=threads,
        verify=arguments.verify,
        storage=storage,
    )
    if predictor.stores and all(next(store.documents(), None) is None for store in predictor.stores):
        show.say("the stores hold no documents: this is the language model alone", quiet=arguments.quiet)
    else:
        warn_of_policy(predictor)
    return predictor


def warn_of_policy(predictor: Predictor) -> None:
    """Say which values of a policy no document has, and whether it leaves any; also to those who want no talk."""
    with predictor.reading() as retriever:
        buckets = [bucket for view in retriever.views for bucket in view.buckets]
        for words in predictor.policy.unknown_names(buckets):
            show.say(f"warning: {words}")
        if buckets and not any(predictor.policy.allows(bucket).any() for bucket in buckets):
            show.say("warning: the policy leaves no document: this is the language model alone")


def _settings(arguments: argparse.Namespace, method: frozenset[str]) -> Settings:
    from dataclasses import replace

    from silo.inference.settings import Settings, load_settings

    settings = load_settings(show.home(arguments), arguments.settings, method) if arguments.settings else Settings()
    ric = {"variant": arguments.ric, "passages": arguments.passages, "weighting": arguments.weighting}
    ric |= {"query_tokens": arguments.query_tokens, "stride": arguments.ric_stride}
    given = {name: value for name, value in ric.items() if value is not None}
    plain = {name: getattr(arguments, name) for name in ("lam", "k", "tau", "probes", "skip")}
    return settings.with_values(**plain, ric=replace(settings.ric, **given))


def _add_score(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("--jsonl", nargs="+", action="extend", required=True, metavar="FILE", help="text to score")
    parser.add_argument("--details", metavar="FILE", help="write one JSON object per token here")
    show.add_html(parser)
    parser.set_defaults(run=_score)


def _score(arguments: argparse.Namespace) -> int:
    from silo.inference.score import score_text
    from silo.lm.manifest import open_tokenizer
    from silo.sources.evaluation import read_scored
    from silo.text.stream import merged_stream

    details, page = show.output_file(arguments.details), show.page_path(arguments)
    texts = (record.text for record in read_scored(map(Path, arguments.jsonl)))
    text = merged_stream(texts, open_tokenizer(Path(arguments.model)))
    predictor = predictor_from_options(arguments)
    show.note_compiling(quiet=arguments.quiet)
    begun = time.perf_counter()
    with show.progress(quiet=arguments.quiet) as advance:
        scored = score_text(predictor, text, advance=advance)
    seconds = time.perf_counter() - begun
    if details:
        with details.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps(item) + "\n" for item in scored.details(predictor.tokenizer))
    total = scored.total
    figures: dict[str, Any] = {**total.as_json(), "tokens_per_second": round(total.tokens / max(seconds, 1e-9), 1)}
    figures |= {"method": "+".join(sorted(predictor.method)) or "lm", "lm_share": scored.lm_share}
    show.facts(arguments.model, figures, as_json=arguments.json)
    if page:
        from silo.journeys.pages import write_score_page

        write_score_page(
            f"{arguments.model} on {', '.join(arguments.jsonl)}", figures, scored.details(predictor.tokenizer), page
        )
    return 0


def _add_generate(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.add_argument("prompt", metavar="PROMPT", help="the beginning of the text; - for standard input")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="end after so many")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: the likeliest token")
    parser.add_argument(
        "--top-k", type=int, default=0, metavar="N", help="draw from the N likeliest tokens; 0: from all"
    )
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw from the likeliest with this mass")
    parser.add_argument("--seed", type=int, metavar="S", help="of the draws; another one each time without it")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this; may be repeated")
    guard = "repeat at most N tokens in a row of a document, and fewer where its quote right is smaller"
    parser.add_argument("--guard", type=int, metavar="N", help=guard)
    parser.add_argument("--neighbours", type=int, default=0, metavar="N", help="show the N nearest places per token")
    storage = "how the engine keeps weights: auto (as in their file, or smaller without loss), float32, bf16 or fp16"
    parser.add_argument("--storage", default="auto", choices=("auto", "float32", "bf16", "fp16"), help=storage)
    parser.add_argument("--ledger", action="store_true", help="note the documents' shares in the stores' ledgers")
    show.add_html(parser)
    parser.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    from silo.cli.painter import Painter
    from silo.inference.session import Session

    names = ("max_tokens", "temperature", "top_k", "top_p", "seed", "stop", "guard", "neighbours")
    options, page = {name: getattr(arguments, name) for name in names}, show.page_path(arguments)
    Session.check(**options)
    prompt = show.read_words(arguments.prompt)
    threads = arguments.threads or _announce_decoding(arguments)
    session = Session(
        predictor_from_options(arguments, guard=arguments.guard, threads=threads, storage=arguments.storage)
    )
    painter = None if arguments.json else Painter()
    answer = write(session, prompt, painter, ledger=arguments.ledger, **options)
    if arguments.json:
        show.print_json(answer.as_json())
    if page:
        from silo.journeys.pages import write_answer_page

        write_answer_page(answer, page)
    return 0


def _announce_decoding(arguments: argparse.Namespace) -> int | None:
    """Say what makes decoding slow, if anything does. Gives the fastest threads, None where the engine chooses."""
    from silo.lm.engine.decoder import uses_engine
    from silo.lm.engine.engine import why_unsupported

    model = Path(arguments.model)
    if not (model / "config.json").is_file():
        return None  # whoever opens it says what is wrong
    if not uses_engine():
        return 1
    if reason := why_unsupported(model):
        show.say(f"transformers decodes this model, not the faster engine: {reason}", quiet=arguments.quiet)
        return 1
    show.note_compiling(quiet=arguments.quiet)
    return None


def write(session: Session, prompt: str, painter: Painter | None, *, ledger: bool = False, **options: Any) -> Answer:
    """Continue a prompt; a painter shows it, every token as it comes, and then the shares."""
    steps = session.generate(prompt, **options)
    if painter:
        painter.prompt(prompt)
    written = []
    for step in steps:
        written.append(step)
        if painter:
            painter.step(step)
    answer = session.collect(prompt, written, ledger=ledger)
    if painter:
        painter.summary(answer)
    return answer
