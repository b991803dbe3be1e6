"""Three generations of one process: with everything, under a policy, and after a document has left. Needs `silo demo`.

    python benchmarks/shown.py [--home silo-demo] [--prompt "..."]

Works on a copy of the demo's store and writes docs/results/shown.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import silo
from silo.inference.answer import Answer
from silo.inference.session import Session
from silo.pairing import open_store
from silo.store.selector import Selector

ROOT = Path(__file__).parent.parent
PROMPT = "    def __init__(self, host, port=None, timeout="
TOKENS = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / "silo-demo")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "shown.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store"
        shutil.copytree(arguments.home / "stores" / "demo", place)
        lines = shown(arguments.home, place, arguments.prompt)
    arguments.out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))
    return 0


def opened(home: Path, place: Path, policy: str = "") -> Session:
    return silo.open(home / "models" / "demo", place, settings="demo", home=home, policy=policy)


def shown(home: Path, place: Path, prompt: str) -> list[str]:
    """The page."""
    session = opened(home, place)
    before = session.answer(prompt, max_tokens=TOKENS)
    licence, _ = before.shares("license")[0]
    policy = f'license != "{licence}"'
    under = opened(home, place, policy).answer(prompt, max_tokens=TOKENS)
    document, _ = before.shares()[0]
    writer = open_store(place)
    gone = writer.erase(Selector(document=document))
    writer.close()
    after = session.answer(prompt, max_tokens=TOKENS)
    assert not any(item.license == licence for step in under.tokens for item in step.credits)
    assert not any(item.document == document for step in after.tokens for item in step.credits)
    name = names(before)[document]
    return [
        "# One prompt, three answers",
        "",
        "Model and store of `silo demo`, greedy, written by `benchmarks/shown.py`. All three come from one process,",
        "the first and the last from one opened session.",
        "",
        "```text",
        *prompt.splitlines(),
        "```",
        "",
        *section("Every document may take part", before),
        *section(f"The same with the policy `{policy}`", under),
        *section(f"The first session again, after `{name}` was erased", after),
        f"The erasure was accepted after {gone.accepted_ms:.0f} ms and done after {gone.done_ms:,.0f} ms.",
        "",
    ]


def names(answer: Answer) -> dict[str, str]:
    return {item.document: item.external_id for step in answer.tokens for item in step.credits}


def section(title: str, answer: Answer) -> list[str]:
    """A text with the documents behind it."""
    known = {item.document: item for step in answer.tokens for item in step.credits}
    rows = [
        f"| {known[name].external_id} | {known[name].license} | {share:.1%} |" for name, share in answer.shares()[:4]
    ]
    return [
        f"## {title}",
        "",
        "```text",
        *answer.text.splitlines(),
        "```",
        "",
        "| document | licence | share |",
        "|---|---|---:|",
        f"| the language model | | {answer.lm_share:.1%} |",
        *rows,
        "",
    ]


if __name__ == "__main__":
    sys.exit(main())
