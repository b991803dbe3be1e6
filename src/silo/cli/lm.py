"""`silo lm train|import|codec|eval|verify|sign|saw`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from silo.cli import show
from silo.errors import ExitStatus, SiloError
from silo.lm.training.presets import PRESETS
from silo.remote.place import placed

_LISTED = 10
"""Violations that are shown to people."""


def add_commands(nouns: Any, common: argparse.ArgumentParser) -> None:
    """Add `silo lm` and its verbs."""
    noun = nouns.add_parser("lm", help="train, import, score and audit language models")
    verbs = noun.add_subparsers(dest="verb", metavar="VERB", required=True)
    _add_train(verbs.add_parser("train", parents=[common], help="permitted text -> a model"))
    _add_import(verbs.add_parser("import", parents=[common], help="bring a model along"))
    _add_codec(verbs.add_parser("codec", parents=[common], help="learn a model's quantiser from permitted text"))
    _add_eval(verbs.add_parser("eval", parents=[common], help="perplexity and bits per byte"))
    _add_verify(verbs.add_parser("verify", parents=[common], help="compare a model with its manifest and a corpus"))
    _add_sign(verbs.add_parser("sign", parents=[common], help="sign a model's manifest"))
    _add_saw(verbs.add_parser("saw", parents=[common], help="did this text, or a near copy, shape the model?"))


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE.toml", help="what to train; or use --corpus")
    parser.add_argument("--corpus", metavar="DIR", help="a corpus made by `silo corpus build`")
    parser.add_argument("--tiers", metavar="LIST", help="tiers that may train, of pd, sw and by; pd,sw without it")
    parser.add_argument("--preset", choices=tuple(PRESETS), help="the network's size; demo, if the recipe names none")
    parser.add_argument("--out", metavar="DIR", help="where the model goes; <home>/models/<recipe> without it")
    parser.add_argument("--home", metavar="DIR", help="the home folder; $SILO_HOME or ./silo-home without it")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens to train on; 5,000,000 without it")
    parser.add_argument(
        "--validation",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="JSON lines to choose the weights on",
    )
    show.add_device(parser)
    show.add_ray(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="processes of --ray; one per GPU or machine without")
    parser.set_defaults(run=_train)


def _train(arguments: argparse.Namespace) -> int:
    from silo.lm.training.request import check_request

    _check_workers(arguments)
    recipe, base, out = _train_recipe(arguments)
    check_request(recipe, out, base)

    from silo.lm.training.distributed import rank

    leads = rank() == 0

    def talk(text: str) -> None:
        show.say(text, quiet=arguments.quiet or not leads)

    with _trainer(arguments) as train, show.progress(quiet=arguments.quiet or not leads) as advance:
        summary = train(recipe, out, base=base, talk=talk, advance=advance)
    if not leads:
        return 0
    if arguments.json:
        show.print_json(summary)
    elif not arguments.quiet:
        shown = {key: value for key, value in summary.items() if not isinstance(value, dict)}
        show.table(f"model {out}", ("what", "value"), [[key, str(value)] for key, value in shown.items()])
    return 0


def _check_workers(arguments: argparse.Namespace) -> None:
    if arguments.workers is not None and not arguments.ray:
        raise SiloError("usage", "--workers needs --ray", "on one machine, start several processes with torchrun")
    if arguments.workers is not None and arguments.workers < 1:
        raise SiloError("usage", "--workers must be at least 1")


@contextmanager
def _trainer(arguments: argparse.Namespace) -> Iterator[Callable[..., dict[str, Any]]]:
    """What trains: this process with others of `torchrun`, or workers of the cluster of --ray."""
    if not arguments.ray:
        from silo.lm.training.train import train

        yield train
        return
    from silo.cluster.connect import connect
    from silo.cluster.train import train_on_cluster

    with connect(arguments.ray):
        yield partial(train_on_cluster, workers=arguments.workers)


def _train_recipe(arguments: argparse.Namespace) -> tuple[Any, Path, Path]:
    from dataclasses import replace

    from silo.recipe import TrainRecipe, load_recipe

    if bool(arguments.recipe) == bool(arguments.corpus):
        raise SiloError("usage", "give either a recipe or --corpus", "see `silo lm train --help`")
    if arguments.recipe:
        path = Path(arguments.recipe)
        recipe, base = load_recipe(path, TrainRecipe), path.absolute().parent
    else:
        recipe, base = TrainRecipe(corpus=str(placed(arguments.corpus, Path.cwd()))), Path.cwd()
    changes: dict[str, Any] = {}
    if arguments.tiers:
        changes["tiers"] = tuple(name.strip() for name in arguments.tiers.split(","))
    if arguments.preset:
        changes["preset"] = arguments.preset
    if arguments.max_tokens:
        changes["max_tokens"] = arguments.max_tokens
    if arguments.dtype:
        changes["dtype"] = arguments.dtype
    if arguments.threads:
        changes["threads"] = arguments.threads
    if arguments.validation:
        changes["validation"] = tuple(show.literal_paths(arguments.validation))
    return replace(recipe, **changes), base, show.home_path(arguments, "models")


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="a Hugging Face directory, a checkpoint, or a hub id")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the model goes")
    parser.add_argument("--download", action="store_true", help="SOURCE is a hub id: fetch it")
    parser.add_argument("--position", choices=("none", "rotary"), help="position signal of an OpenLM checkpoint")
    parser.add_argument("--tokenizer", metavar="FILE", help="a tokenizer.json for a checkpoint that has none")
    parser.add_argument("--force", action="store_true", help="replace an imported model that is already there")
    parser.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from silo.cli.doctor import decoded_by
    from silo.lm.importers.locate import locate_model, require_place

    tokenizer = Path(arguments.tokenizer) if arguments.tokenizer else None
    require_place(Path(arguments.out), force=arguments.force)
    locate_model(arguments.source, position=arguments.position, allow_download=arguments.download, tokenizer=tokenizer)

    from silo.lm.importers.import_model import import_model

    with show.progress(quiet=arguments.quiet) as advance:
        model = import_model(
            arguments.source,
            Path(arguments.out),
            position=arguments.position,
            allow_download=arguments.download,
            tokenizer=tokenizer,
            force=arguments.force,
            advance=advance,
        )
    facts = {
        "out": arguments.out,
        "fingerprint": model.fingerprint,
        "vocabulary": model.vocabulary,
        "hidden_size": model.hidden_size,
        "context": model.context,
        "decoded_by": decoded_by(Path(arguments.out)),
    }
    show.facts("imported", facts, as_json=arguments.json)
    return 0


def _add_codec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model directory")
    parser.add_argument("--corpus", required=True, metavar="DIR", help="permitted text to learn from")
    parser.add_argument("--lists", type=int, default=4096, metavar="N", help="coarse centroids")
    parser.add_argument("--bytes", type=int, default=32, metavar="N", help="bytes of a code")
    parser.add_argument("--dimensions", type=int, metavar="N", help="directions of largest variance; half without it")
    parser.add_argument("--rotation", choices=("none", "pca", "opq"), default="pca", help="before keys are cut")
    parser.add_argument("--key", choices=("ffn", "final"), help="state that is a key; ffn if the network offers it")
    parser.add_argument("--keys", type=int, default=200_000, metavar="N", help="how many keys to learn from")
    show.add_device(parser)
    parser.set_defaults(run=_codec)


def _codec(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.files import MANIFEST, read_json
    from silo.lm.firewall import codec_permit
    from silo.search.knn.codec import CodecSettings

    corpus = Corpus.open(Path(arguments.corpus))
    codec_permit(Path(arguments.model), corpus)
    settings = CodecSettings(
        rotation=arguments.rotation,
        dimensions=arguments.dimensions or 0,
        lists=arguments.lists,
        code_bytes=arguments.bytes,
    )

    from silo.lm.codec import learn_codec

    show.note_compiling(quiet=arguments.quiet)
    with show.progress(quiet=arguments.quiet) as advance:
        codec = learn_codec(
            Path(arguments.model),
            corpus,
            settings,
            key=arguments.key,
            keys=arguments.keys,
            advance=advance,
        )
    facts = {
        "model": arguments.model,
        "codec": codec.fingerprint,
        "key": read_json(Path(arguments.model) / MANIFEST)["codec_key"],
        "lists": codec.settings.lists,
    }
    show.facts("codec", facts, as_json=arguments.json)
    return 0


def _add_eval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model directory")
    parser.add_argument("--jsonl", nargs="+", action="extend", required=True, metavar="FILE", help="text to score")
    parser.add_argument("--length", type=int, default=1024, metavar="N", help="tokens in a window")
    parser.add_argument("--stride", type=int, default=512, metavar="N", help="tokens that a later window scores")
    show.add_verify(parser)
    show.add_device(parser)
    parser.set_defaults(run=_eval)


def _eval(arguments: argparse.Namespace) -> int:
    from silo.lm.manifest import open_tokenizer
    from silo.lm.windows import Windows
    from silo.sources.evaluation import read_scored
    from silo.text.stream import merged_stream

    asked = Windows(arguments.length, arguments.stride)
    texts = (record.text for record in read_scored(map(Path, arguments.jsonl)))
    text = merged_stream(texts, open_tokenizer(Path(arguments.model)))

    from silo.lm.engine.decoder import open_network
    from silo.lm.scoring import score

    model = open_network(Path(arguments.model), verify=arguments.verify)
    show.note_compiling(quiet=arguments.quiet)
    windows = asked.within(model.context)
    with show.progress(quiet=arguments.quiet) as advance:
        figures = score(model, text, windows, advance=advance).as_json()
    figures |= {"length": windows.length, "stride": windows.stride}
    show.facts(arguments.model, figures, as_json=arguments.json)
    return 0


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model directory")
    parser.add_argument("--corpus", metavar="DIR", help="compare everything the model saw with this corpus")
    parser.add_argument("--saw", metavar="ID", help="did the model see this document? As for `silo lm saw --document`")
    parser.add_argument("--key", metavar="FILE", help="the public key that must have signed it")
    parser.add_argument("--violations", metavar="FILE", help="write every violation here, one a line")
    parser.set_defaults(run=_verify)


def _verify(arguments: argparse.Namespace) -> int:
    from silo.lm.audit import SAW_STATUS, verify_model

    trusted = show.read_bytes(arguments.key) if arguments.key else None
    listing = show.output_file(arguments.violations)
    audit = verify_model(Path(arguments.model), corpus=arguments.corpus, saw=arguments.saw, trusted=trusted)
    violations = audit.get("violations", [])
    if listing:
        listing.write_text("".join(f"{line}\n" for line in violations), encoding="utf-8")
    if arguments.json:
        show.print_json(audit)
    else:
        shown = {name: len(value) if name == "violations" else value for name, value in audit.items()}
        show.facts(arguments.model, shown, as_json=False)
        _show_violations(violations)
    if violations:
        return int(ExitStatus.REFUSED)
    return int(SAW_STATUS[audit["answer"]]) if arguments.saw else 0


def _show_violations(violations: Sequence[str]) -> None:
    """How often each kind there is, and the first few of them: a line is a document's id and what is wrong with it."""
    if not violations:
        return
    pairs = [line.partition(" ")[::2] for line in violations]
    kinds = Counter(reason for _, reason in pairs)
    show.table("violations", ("what is wrong", "documents"), [[reason, count] for reason, count in kinds.most_common()])
    first = [[name, reason] for name, reason in pairs[:_LISTED]]
    show.table(f"the first {len(first)} of {len(violations):,}", ("document", "what is wrong"), first)
    if len(violations) > _LISTED:
        show.say("--json or --violations FILE lists all of them")


def _add_sign(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model directory")
    parser.add_argument("--key", required=True, metavar="FILE", help="the signing key; made if there is none")
    parser.set_defaults(run=_sign)


def _sign(arguments: argparse.Namespace) -> int:
    from silo.lm.audit import sign_model

    show.facts(arguments.model, sign_model(Path(arguments.model), Path(arguments.key)), as_json=arguments.json)
    return 0


def _add_saw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model directory")
    parser.add_argument("--file", metavar="FILE", help="text to ask about; - for standard input")
    parser.add_argument(
        "--document", metavar="ID", help="silo's id of a document; or that of its record, with --corpus"
    )
    parser.add_argument("--corpus", metavar="DIR", help="the corpus that has the text of the document")
    parser.set_defaults(run=_saw)


def _saw(arguments: argparse.Namespace) -> int:
    from silo.corpus.corpus import Corpus
    from silo.lm.audit import saw_document, saw_text

    if bool(arguments.file) == bool(arguments.document):
        raise SiloError("usage", "give either --file or --document", "see `silo lm saw --help`")
    model = Path(arguments.model)
    if arguments.file:
        found = saw_text(model, show.read_text(arguments.file))
    else:
        corpus = Corpus.open(Path(arguments.corpus)) if arguments.corpus else None
        found = saw_document(model, arguments.document, corpus=corpus)
    show.facts(arguments.model, found.as_json(), as_json=arguments.json)
    return int(found.status)
