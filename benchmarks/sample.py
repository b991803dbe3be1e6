"""Text sampled from the four models, for the reader's own impression: docs/results/samples.md.

    python benchmarks/sample.py [--tokens 80] [--temperature 0.8] [--top-p 0.9] [--seed 0]

Prompts are the first 24 tokens of validation documents that anyone may copy. A continuation that shares eight words in
a row with a restricted document of the corpus is not printed: nothing restricted enters the repository. The models are
those of `silo experiment parametric`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from silo.corpus.corpus import Corpus
from silo.corpus.shards import read_lines
from silo.lm.model import LanguageModel
from silo.lm.network import parameter_count
from silo.records import Tier
from silo.rights import classify
from silo.text.normalise import normalise
from silo.text.strict_json import parse_object
from silo.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
NAMES = ("pd", "pdsw", "pdswby", "all")
DOMAINS = ("gutenberg", "legal", "arxiv_abstracts", "tech_specs_pd", "code_permissive", "math", "wikipedia")
PROMPT_TOKENS = 24
COPIED_WORDS = 8

INTRODUCTION = """# What the models write

Made by `python benchmarks/sample.py`: {tokens} tokens after a prompt of {prompt} (temperature {temperature}, top-p
{top_p}, seed {seed}). The models have {parameters:.1f} million parameters and were trained on {seen:.1f} million
tokens: a text takes on the look of its domain, in words, line breaks and punctuation, and makes no sense. Nothing here
is chosen: each prompt is the beginning of the first validation document that fits, each continuation the first one
drawn.

`all` is the reference that was trained on everything; the others saw permitted text only. A continuation that shares
{copied} words in a row with a restricted document would be withheld here; that happened {withheld} times.
"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn."""

    tokens: int
    temperature: float
    top_p: float
    seed: int


@dataclass(frozen=True, slots=True)
class Prompt:
    """The beginning of a document, with where it is from."""

    domain: str
    label: str
    licence: str
    text: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "experiments" / "models")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "experiments" / "corpus")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "samples.md")
    arguments = parser.parse_args()
    sampling = Sampling(arguments.tokens, arguments.temperature, arguments.top_p, arguments.seed)
    names = [name for name in NAMES if (arguments.models / name / "manifest.json").exists()]
    if not names or not arguments.data.is_dir():
        print("no finished model, or no ../shared/data: nothing to sample")
        return 0
    models = {name: LanguageModel.open(arguments.models / name, threads=1) for name in names}
    tokenizer = models[names[0]].tokenizer
    prompts = [find_prompt(arguments.data, domain, tokenizer) for domain in DOMAINS]
    drawn = {(prompt.domain, name): draw(models[name], prompt, sampling) for prompt in prompts for name in names}
    copied = copies(drawn, Corpus.open(arguments.corpus))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    introduction = introduce(models[names[0]], sampling, withheld=len(copied))
    arguments.out.write_text(introduction + page(prompts, names, drawn, copied), encoding="utf-8")
    return 0


def find_prompt(data: Path, domain: str, tokenizer: Tokenizer) -> Prompt:
    """The beginning of the first document that is long enough, free to copy, and not about a living person."""
    for line in read_lines(data / f"{domain}.validation.jsonl.zst"):
        record = parse_object(line, 64)
        ids = tokenizer.encode([normalise(record["text"])])[0]
        text = tokenizer.decode(ids[:PROMPT_TOKENS]).strip()
        if len(ids) >= 2 * PROMPT_TOKENS and free_to_copy(record) and "born" not in text:
            return Prompt(domain, record["id"], record["license"], text)
    raise SystemExit(f"{domain} has no validation document to prompt with")


def free_to_copy(record: Mapping[str, Any]) -> bool:
    """Both the record's own tier and its licence, as silo reads it, let anyone copy the text."""
    return record["tier"] != Tier.restricted and classify(record["license"]).tier != Tier.restricted


def draw(model: LanguageModel, prompt: Prompt, sampling: Sampling) -> str:
    """A continuation; the same seed for every model and prompt."""
    print(f"{prompt.domain}: {model.root.name}", file=sys.stderr, flush=True)
    begin = np.array([model.tokenizer.begin], dtype=np.uint32)
    ids = np.concatenate([begin, model.tokenizer.encode([prompt.text])[0]])
    written = np.fromiter(continuation(model, ids, sampling), dtype=np.uint32)
    return model.tokenizer.decode(written)


def continuation(model: LanguageModel, ids: np.ndarray[Any, np.dtype[np.uint32]], sampling: Sampling) -> Iterator[int]:
    """Token after token until the document ends; states of earlier tokens are kept."""
    source = torch.Generator().manual_seed(sampling.seed)
    given, past = torch.from_numpy(ids.astype(np.int64)).unsqueeze(0), None
    for _ in range(sampling.tokens):
        with torch.inference_mode():
            answer = model.network(input_ids=given, past_key_values=past, use_cache=True)
        token = nucleus(answer.logits[0, -1].float() / sampling.temperature, sampling.top_p, source)
        if token == model.tokenizer.begin:
            return
        yield token
        given, past = torch.tensor([[token]]), answer.past_key_values


def nucleus(logits: torch.Tensor, share: float, source: torch.Generator) -> int:
    """Draw among the likeliest tokens that together reach a share of the probability."""
    chances, order = logits.softmax(0).sort(descending=True)
    kept = chances * (chances.cumsum(0) - chances < share)
    return int(order[torch.multinomial(kept, 1, generator=source)])


def copies(drawn: Mapping[tuple[str, str], str], corpus: Corpus) -> set[tuple[str, str]]:
    """The continuations that share a run of words with a restricted document."""
    owners: dict[str, set[tuple[str, str]]] = {}
    for key, text in drawn.items():
        for run in runs(text):
            owners.setdefault(run, set()).add(key)
    found: set[tuple[str, str]] = set()
    for document in corpus.documents(tiers=[Tier.restricted]):
        for run in owners.keys() & set(runs(document.text)):
            found |= owners[run]
    return found


def runs(text: str) -> Iterator[str]:
    """Every run of `COPIED_WORDS` words, in lower case."""
    words = text.lower().split()
    return (" ".join(words[at : at + COPIED_WORDS]) for at in range(len(words) - COPIED_WORDS + 1))


def introduce(model: LanguageModel, sampling: Sampling, *, withheld: int) -> str:
    return INTRODUCTION.format(
        **asdict(sampling),
        prompt=PROMPT_TOKENS,
        copied=COPIED_WORDS,
        withheld=withheld,
        parameters=parameter_count(model.network) / 1e6,
        seen=model.manifest["training"]["summary"]["tokens"] / 1e6,
    )


def page(
    prompts: list[Prompt], names: list[str], drawn: Mapping[tuple[str, str], str], copied: set[tuple[str, str]]
) -> str:
    """All samples as a page of docs/results."""
    lines = [""]
    for prompt in prompts:
        lines += [
            f"## {prompt.domain}",
            "",
            f"Prompt, from `{prompt.label}` ({prompt.licence}):",
            "",
            block(prompt.text),
        ]
        for name in names:
            shown = block(drawn[prompt.domain, name]) if (prompt.domain, name) not in copied else "withheld\n"
            lines += [f"`{name}`:", "", shown]
    return "\n".join(lines).rstrip() + "\n"


def block(text: str) -> str:
    """Text that a page shows as it is: indented, without control characters or anything that reads as a link."""
    plain = "".join(sign for sign in text.strip("\n") if sign.isprintable() or sign == "\n").replace("](", "] (")
    return "".join(f"    {line}".rstrip() + "\n" for line in plain.split("\n") or [""])


if __name__ == "__main__":
    sys.exit(main())
