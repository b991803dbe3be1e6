"""The server under load: tokens per second, time to the first token and errors, for more and more clients.

    python benchmarks/serve.py --model DIR [--model DIR] [--store-tokens 1000000] [--clients 1 4 16 64] [--seconds 30]

Every client streams answers, one after the other, from `silo serve` with kNN, n-grams and credit over a store of real
text. Compared are one client, and as many processes as there are clients that each have the model and the store to
themselves (`--processes`). At the end more clients come than the server takes: they may be sent away, nothing else may
go wrong, and the time is taken until a request is answered again. Keys of the store are drawn near those of a sample,
as in decode.py: searching takes as long, and filling takes no day. Stores are kept in `--work`. Results:
docs/results/serve.json and serve.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from silo.files import write_json
from silo.pairing import open_store

ROOT = Path(__file__).parent.parent
SLOTS, QUEUE = 64, 64
PROMPTS, PROMPT_WORDS = 64, 30
GOAL_CLIENTS, GOAL_TIMES = 16, 3.0
"""So many clients get so many times the tokens per second of one."""


def main() -> int:
    arguments = parsed()
    if arguments.alone:
        return write_alone(arguments.model[0], arguments.alone, arguments)
    found: dict[str, Any] = {"seconds": arguments.seconds, "tokens": arguments.tokens, "models": []}
    for model in arguments.model:
        store = made_store(arguments, model)
        measured = measure(arguments, model, store)
        print(json.dumps(measured), flush=True)
        found["models"].append(measured)
    found["missed"] = [reason for item in found["models"] for reason in missed_goals(item)]
    write_json(arguments.out.with_suffix(".json"), found)
    arguments.out.with_suffix(".md").write_text(page(found), encoding="utf-8")
    return 1 if found["missed"] else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, action="append", required=True)
    parser.add_argument("--domain", default="enron_emails")
    parser.add_argument("--store-tokens", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--overload", type=int, default=2 * (SLOTS + QUEUE), help="clients at the end; 0 for none")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "serve")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "serve")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def made_store(arguments: argparse.Namespace, model: Path) -> Path:
    """A store for a model, if an earlier run has not left it."""
    place: Path = arguments.work / f"{model.name}-{arguments.domain}-{arguments.store_tokens}"
    if not place.exists():
        from decode import fill_with_random_keys
        from silo.lm.model import LanguageModel

        place.parent.mkdir(parents=True, exist_ok=True)
        fill_with_random_keys(place, model, LanguageModel.open(model), [arguments.domain], arguments.store_tokens)
    return place


def prompts_of(store: Path) -> list[str]:
    """Beginnings of documents: texts that the store has something to say to."""
    opened = open_store(store)
    texts = [" ".join(item.text.split()[:PROMPT_WORDS]) for item in islice(opened.documents(), PROMPTS)]
    opened.close()
    return texts


def measure(arguments: argparse.Namespace, model: Path, store: Path) -> dict[str, Any]:
    prompts = prompts_of(store)
    found: dict[str, Any] = {"model": model.name, "store": store.name, "clients": {}, "processes": {}}
    with serving(arguments.work, model, store) as address:
        for count in arguments.clients:
            load = asyncio.run(run_clients(address, prompts, count, arguments))
            found["clients"][str(count)] = load.as_json()
            print(f"{model.name}: {count} clients: {load.as_json()}", flush=True)
        if arguments.overload:
            load = asyncio.run(run_clients(address, prompts, arguments.overload, arguments))
            begun = time.perf_counter()
            after = asyncio.run(run_clients(address, prompts, 1, arguments, answers=1))
            found["overload"] = {
                "clients": arguments.overload,
                **load.as_json(),
                "recovered_seconds": round(time.perf_counter() - begun, 2) if after.answers else None,
            }
    for count in arguments.processes:
        found["processes"][str(count)] = run_processes(model, store, count, arguments)
        print(f"{model.name}: {count} processes: {found['processes'][str(count)]} tokens/s", flush=True)
    return found


@contextmanager
def serving(work: Path, model: Path, store: Path) -> Iterator[str]:
    """A server of its own; gives its address."""
    file = work / "serve.toml"
    limits = f"[limits]\nslots = {SLOTS}\nqueue = {QUEUE}\n"
    named = f'[models.bench]\nmodel = "{model.absolute()}"\nstores = ["{store.absolute()}"]\nmethod = "knn+ngram"\n'
    file.write_text(f'home = "{(work / "home").absolute()}"\nport = 0\n{named}{limits}')
    log = (work / "serve.log").open("w+")
    command = [sys.executable, "-m", "silo", "serve", str(file)]
    with subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL) as run:
        try:
            yield wait_for_address(run, work / "serve.log")
        finally:
            run.terminate()
            run.wait()
            log.close()


def wait_for_address(run: subprocess.Popen[bytes], log: Path) -> str:
    while run.poll() is None:
        if match := re.search(r"at (http://[^/\s]+)", log.read_text()):
            return match[1]
        time.sleep(0.1)
    raise RuntimeError(f"the server ended: {log.read_text()[-2000:]}")


@dataclass(slots=True)
class Load:
    """What some clients saw."""

    seconds: float = 0.0
    answers: int = 0
    tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "tokens_per_second": round(self.tokens / self.seconds, 1) if self.seconds else 0.0,
            "first_token_ms": _quantiles(self.first_token),
            "answer_ms": _quantiles(self.whole),
            "refused": {str(status): count for status, count in self.refused.items()},
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{at}": round(1000 * float(np.percentile(seconds, at)), 1) for at in (50, 99)} if seconds else {}


async def run_clients(
    address: str, prompts: list[str], count: int, arguments: argparse.Namespace, *, answers: int = 0
) -> Load:
    """Clients that ask without a pause for some seconds, or until there are so many answers."""
    load, begun = Load(), time.perf_counter()
    end = begun + arguments.seconds
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=address, timeout=600.0, limits=limits) as http:

        async def ask_on(number: int) -> None:
            for prompt in islice(cycle(prompts), number * 7, None):
                if load.answers >= answers if answers else time.perf_counter() > end:
                    return
                await ask(http, prompt, arguments.tokens, load)

        await asyncio.gather(*(ask_on(number) for number in range(count)))
    load.seconds = time.perf_counter() - begun
    return load


async def ask(http: httpx2.AsyncClient, prompt: str, tokens: int, load: Load) -> None:
    """One streamed answer; whoever is sent away comes back when the server says."""
    body = {"model": "bench", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    begun, first = time.perf_counter(), 0.0
    try:
        async with http.stream(
            "POST", "/v1/completions", json={**body, "stream_options": {"include_usage": True}}
        ) as got:
            if got.status_code != 200:
                load.refused[got.status_code] += 1
                if got.status_code not in (429, 503):
                    load.errors.append(f"{got.status_code}: {(await got.aread()).decode()[:200]}")
                await asyncio.sleep(float(got.headers.get("retry-after", "1")))
                return
            async for line in got.aiter_lines():
                if line.startswith("data: {"):
                    first = first or time.perf_counter()
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise ValueError(chunk["error"]["message"])
                    load.tokens += (chunk.get("usage") or {}).get("completion_tokens", 0)
    except (httpx2.HTTPError, ValueError) as error:
        load.errors.append(f"{type(error).__name__}: {error}")
        return
    load.answers += 1
    load.first_token.append(first - begun)
    load.whole.append(time.perf_counter() - begun)


def run_processes(model: Path, store: Path, count: int, arguments: argparse.Namespace) -> float:
    """Tokens per second of processes that know nothing of each other, while all of them write."""
    given = ["--seconds", str(arguments.seconds), "--tokens", str(arguments.tokens)]
    command = [sys.executable, __file__, "--model", str(model), "--alone", str(store), *given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    rates = [float(run.communicate()[0]) for run in runs]
    return round(sum(rates), 1)


def write_alone(model: Path, store: Path, arguments: argparse.Namespace) -> int:
    """Write answers in this process as the server's clients ask for them, and print the tokens per second."""
    from silo.inference.predict import open_predictor
    from silo.inference.session import Session

    session = Session(open_predictor(model, [store], method="knn+ngram", threads=1))
    prompts = prompts_of(store)
    session.answer(prompts[0], max_tokens=2)
    print("ready", flush=True)
    sys.stdin.readline()
    begun, tokens = time.perf_counter(), 0
    for prompt in cycle(prompts):
        for _ in session.generate(prompt, max_tokens=arguments.tokens):
            tokens += 1
            if time.perf_counter() - begun > arguments.seconds:
                print(tokens / (time.perf_counter() - begun))
                return 0
    return 1


def missed_goals(item: dict[str, Any]) -> list[str]:
    """What was promised and is not so."""
    name, clients, missed = item["model"], item["clients"], []
    if {"1", str(GOAL_CLIENTS)} <= set(clients):
        times = clients[str(GOAL_CLIENTS)]["tokens_per_second"] / clients["1"]["tokens_per_second"]
        if times < GOAL_TIMES:
            missed.append(f"{name}: {GOAL_CLIENTS} clients have {times:.2f} times the tokens of one")
    loads = {**clients, **({"too many": item["overload"]} if "overload" in item else {})}
    missed += [f"{name}: {load['errors']} errors of {count} clients" for count, load in loads.items() if load["errors"]]
    missed += [f"{name}: {count} clients were refused" for count, load in clients.items() if load["refused"]]
    return missed


def page(found: dict[str, Any]) -> str:
    """The results as a page."""
    lines = [
        "# The server under load",
        "",
        f"Clients stream answers of {found['tokens']} tokens without a pause, kNN + n-gram + credit, temperature 0, "
        f"{found['seconds']:g} seconds for each row. Processes: tokens/s of as many that have "
        "the model and the store to themselves.",
    ]
    for item in found["models"]:
        lines += [
            "",
            f"## {item['model']}, {item['store']}",
            "",
            "| clients | tokens/s | times one | first token p50 / p99 ms | answer p50 / p99 ms | errors | processes |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        one = item["clients"].get("1", {}).get("tokens_per_second", 0.0)
        for count, load in item["clients"].items():
            rate = load["tokens_per_second"]
            times = f"{rate / one:.2f}" if one else ""
            spans = [
                " / ".join(str(value) for value in load[name].values()) for name in ("first_token_ms", "answer_ms")
            ]
            processes = item["processes"].get(count, "")
            lines.append(f"| {count} | {rate} | {times} | {spans[0]} | {spans[1]} | {load['errors']} | {processes} |")
        if "overload" in item:
            load = item["overload"]
            refused = ", ".join(f"{times} times {status}" for status, times in load["refused"].items()) or "nobody"
            lines += [
                "",
                f"{load['clients']} clients at {SLOTS} slots and a queue of {QUEUE}: {load['answers']} answers, sent "
                f"away {refused}, {load['errors']} errors; the next request was answered after "
                f"{load['recovered_seconds']} s.",
            ]
    lines += ["", "Goals missed: " + ("; ".join(found["missed"]) or "none") + ".", ""]
    return "\n".join([*lines, "Made by `benchmarks/serve.py`.", ""])


if __name__ == "__main__":
    sys.exit(main())
