"""The server under load: tokens per second, time to the first token and errors, for more and more clients.

    python benchmarks/serve.py --model DIR [--model DIR] [--store-tokens 1000000] [--clients 1 4 16 64] [--seconds 30]

Every client streams answers, one after the other, from `silo serve` with kNN, n-grams and credit over a store of real
text. Compared are one client; as many processes as there are clients that each have the model and the store to
themselves (`--processes`); one process that writes without drafts, which only help a text that is written alone; and
`transformers serve` with the same model and no store, where it is installed. At the end more clients come than the
server takes: they may be sent away, nothing else may go wrong, and the time is taken until a request is answered
again. Besides tokens per second the processor time of the server per token is taken, which says more where other
programs run. Keys of the store are drawn near those of a sample, as in decode.py: searching takes as long, and filling
takes no day. Stores are kept in `--work`. Results: docs/results/serve.json and serve.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from silo.files import write_json
from silo.pairing import open_store

ROOT = Path(__file__).parent.parent
SLOTS, QUEUE = 64, 64
PROMPTS, PROMPT_WORDS = 64, 30
GOAL_CLIENTS, GOAL_TIMES = 16, 3.0
"""So many clients get so many times the tokens per second of one."""
GOAL_COST = 1.3
"""A token of one client takes at most so many times the processor time of a process without a server."""
OTHER_CLIENTS = (1, 16)
OTHER_STARTS = 120.0
"""Seconds for `transformers serve` to come up."""


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
    parser.add_argument("--threads", type=int, default=0, help="of the server's networks; all cores without it")
    parser.add_argument("--transformers", default=sys.executable, help="Python with transformers[serving]; '' for none")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each number of clients")
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "serve")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "serve")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--no-drafts", dest="drafts", action="store_false", help=argparse.SUPPRESS)
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
    with serving(arguments, model, store) as server:
        asyncio.run(run_clients(server, prompts, 1, arguments, answers=2))
        for count in arguments.clients:
            load = asyncio.run(run_clients(server, prompts, count, arguments))
            found["clients"][str(count)] = load.as_json()
            print(f"{model.name}: {count} clients: {load.as_json()}", flush=True)
        if arguments.overload:
            load = asyncio.run(run_clients(server, prompts, arguments.overload, arguments))
            begun = time.perf_counter()
            after = asyncio.run(run_clients(server, prompts, 1, arguments, answers=1))
            found["overload"] = {
                "clients": arguments.overload,
                **load.as_json(),
                "recovered_seconds": round(time.perf_counter() - begun, 2) if after.answers else None,
            }
    found["without_drafts"] = run_processes(model, store, 1, arguments, "--no-drafts")
    for count in arguments.processes:
        found["processes"][str(count)] = run_processes(model, store, count, arguments)
        print(f"{model.name}: {count} processes: {found['processes'][str(count)]}", flush=True)
    found["transformers"] = measure_transformers(arguments, model, prompts)
    print(f"{model.name}: transformers serve: {found['transformers']}", flush=True)
    return found


def measure_transformers(arguments: argparse.Namespace, model: Path, prompts: list[str]) -> dict[str, Any]:
    """Tokens per second of `transformers serve` by the number of clients, or why there are none."""
    if not arguments.transformers:
        return {"skipped": "not asked for"}
    try:
        with serving_transformers(arguments, model) as server:
            asyncio.run(run_clients(server, prompts, 1, arguments, answers=1))
            loads = {count: asyncio.run(run_clients(server, prompts, count, arguments)) for count in OTHER_CLIENTS}
    except (OSError, RuntimeError) as error:
        return {"skipped": str(error)}
    failed = next((load.errors[0] for load in loads.values() if load.errors), "")
    if failed or not all(load.tokens for load in loads.values()):
        return {"skipped": f"it answered with {failed or 'no tokens'}"}
    return {str(count): load.as_json() for count, load in loads.items()}


class Server(NamedTuple):
    """A server under test: its address, its process, and the name of the model there."""

    host: str
    port: int
    process: int
    model: str

    def processor_seconds(self) -> float:
        """What it and the processes it waited for have used of the processor."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving_transformers(arguments: argparse.Namespace, model: Path) -> Iterator[Server]:
    """`transformers serve` with a model and no store."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = arguments.work / "transformers.log"
    main = "import sys; from transformers.cli.transformers import main; sys.exit(main())"
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [arguments.transformers, "-c", main, "serve", str(model.absolute()), *options]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=offline) as run:
        try:
            wait_for_health(run, port, log)
            yield Server("127.0.0.1", port, run.pid, str(model.absolute()))
        finally:
            run.terminate()
            try:
                run.wait(10)
            except subprocess.TimeoutExpired:
                run.kill()


def wait_for_health(run: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + OTHER_STARTS
    while time.monotonic() < end and run.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
    raise RuntimeError(f"it did not start: {' '.join(last)[:200]}")


@contextmanager
def serving(arguments: argparse.Namespace, model: Path, store: Path) -> Iterator[Server]:
    """A server of its own."""
    work = arguments.work
    file = work / "serve.toml"
    limits = f"[limits]\nslots = {SLOTS}\nqueue = {QUEUE}\n"
    named = f'[models.bench]\nmodel = "{model.absolute()}"\nstores = ["{store.absolute()}"]\nmethod = "knn+ngram"\n'
    head = f'home = "{(work / "home").absolute()}"\nport = 0\nthreads = {arguments.threads}\n'
    file.write_text(f"{head}{named}{limits}")
    log = (work / "serve.log").open("w+")
    command = [sys.executable, "-m", "silo", "serve", str(file)]
    with subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL) as run:
        try:
            host, port = wait_for_address(run, work / "serve.log").removeprefix("http://").split(":")
            yield Server(host, int(port), run.pid, "bench")
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
    processor_seconds: float = 0.0
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
            "processor_ms_per_token": round(1000 * self.processor_seconds / max(1, self.tokens), 3),
            "first_token_ms": _quantiles(self.first_token),
            "answer_ms": _quantiles(self.whole),
            "refused": {str(status): count for status, count in self.refused.items()},
            "errors": len(self.errors),
            "first_errors": self.errors[:3],
        }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{at}": round(1000 * float(np.percentile(seconds, at)), 1) for at in (50, 99)} if seconds else {}


async def run_clients(
    server: Server, prompts: list[str], count: int, arguments: argparse.Namespace, *, answers: int = 0
) -> Load:
    """Clients that ask without a pause for some seconds, or until there are so many answers."""
    load, begun, used = Load(), time.perf_counter(), server.processor_seconds()
    end = begun + arguments.seconds

    async def ask_on(number: int) -> None:
        for prompt in islice(cycle(prompts), number * 7, None):
            if load.answers >= answers if answers else time.perf_counter() > end:
                return
            await ask(server, prompt, arguments.tokens, load)

    await asyncio.gather(*(ask_on(number) for number in range(count)))
    load.seconds, load.processor_seconds = time.perf_counter() - begun, server.processor_seconds() - used
    return load


async def ask(server: Server, prompt: str, tokens: int, load: Load) -> None:
    """One streamed answer; whoever is sent away comes back when the server says."""
    body = {"model": server.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True}
    content = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
    begun, first = time.perf_counter(), 0.0
    try:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        try:
            writer.write(_head(server, len(content)) + content)
            status, headers = await _read_head(reader)
            if status != 200:
                load.refused[status] += 1
                if status not in (429, 503):
                    load.errors.append(f"{status}: {(await reader.read(200)).decode()}")
                await asyncio.sleep(float(headers.get("retry-after", "1")))
                return
            async for event in _events(reader):
                first = first or time.perf_counter()
                if b'"error"' in event or b'"usage"' in event:
                    load.tokens += _tokens_of(event)
        finally:
            writer.close()
    except (OSError, EOFError, ValueError) as error:
        load.errors.append(f"{type(error).__name__}: {error}")
        return
    load.answers += 1
    load.first_token.append(first - begun)
    load.whole.append(time.perf_counter() - begun)


def _head(server: Server, length: int) -> bytes:
    """A request as bytes: a client's library would take as much of the processor as the server does."""
    lines = ["POST /v1/completions HTTP/1.1", f"host: {server.host}:{server.port}", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {length}", "connection: close", "", ""]).encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    return int(first.split()[1]), headers


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The events of a stream that comes in chunks."""
    held = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        *events, held = (held + (await reader.readexactly(size + 2))[:-2]).split(b"\n\n")
        for event in events:
            if event.startswith(b"data: {"):
                yield event


def _tokens_of(event: bytes) -> int:
    """The tokens that an event says were written; an error is raised."""
    content = json.loads(event.removeprefix(b"data: "))
    if "error" in content:
        raise ValueError(str(content["error"])[:200])
    usage = content.get("usage") or {}
    return int(usage.get("completion_tokens", 0))


def run_processes(
    model: Path, store: Path, count: int, arguments: argparse.Namespace, *options: str
) -> dict[str, float]:
    """What processes that know nothing of each other write, all at once."""
    given = ["--seconds", str(arguments.seconds), "--tokens", str(arguments.tokens), *options]
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
    said = [json.loads(run.communicate()[0]) for run in runs]
    rate = sum(item["tokens"] / item["seconds"] for item in said)
    cost = sum(item["processor_seconds"] for item in said) / sum(item["tokens"] for item in said)
    return {"tokens_per_second": round(rate, 1), "processor_ms_per_token": round(1000 * cost, 3)}


def write_alone(model: Path, store: Path, arguments: argparse.Namespace) -> int:
    """Write answers in this process as the server's clients ask for them, and print how many tokens that were."""
    from silo.inference.predict import open_predictor
    from silo.inference.session import Session

    predictor = open_predictor(model, [store], method="knn+ngram", threads=1)
    predictor.drafting = arguments.drafts
    session = Session(predictor)
    prompts = prompts_of(store)
    session.answer(prompts[0], max_tokens=arguments.tokens)
    print("ready", flush=True)
    sys.stdin.readline()
    begun, used, tokens = time.perf_counter(), time.process_time(), 0
    for prompt in cycle(prompts):
        tokens += len(session.answer(prompt, max_tokens=arguments.tokens).tokens)
        seconds = time.perf_counter() - begun
        if seconds > arguments.seconds:
            spent = time.process_time() - used
            print(json.dumps({"tokens": tokens, "seconds": seconds, "processor_seconds": spent}))
            return 0
    return 1


def missed_goals(item: dict[str, Any]) -> list[str]:
    """What was promised and is not so."""
    name, clients, missed = item["model"], item["clients"], []
    if {"1", str(GOAL_CLIENTS)} <= set(clients):
        times = clients[str(GOAL_CLIENTS)]["tokens_per_second"] / clients["1"]["tokens_per_second"]
        if times < GOAL_TIMES:
            missed.append(f"{name}: {GOAL_CLIENTS} clients have {times:.2f} times the tokens of one")
    if "1" in clients and "1" in item["processes"]:
        alone = item["processes"]["1"]["processor_ms_per_token"]
        cost = clients["1"]["processor_ms_per_token"] / alone
        if cost > GOAL_COST:
            missed.append(f"{name}: a token of one client takes {cost:.2f} times the processor time of a bare process")
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
        f"{found['seconds']:g} seconds for each row. CPU: processor time of the server per token. Processes: as many "
        "that have the model and the store to themselves, one thread each.",
    ]
    for item in found["models"]:
        lines += [
            "",
            f"## {item['model']}, {item['store']}",
            "",
            "| clients | tokens/s | times one | CPU ms | first token p50 / p99 ms | answer p50 / p99 ms | errors "
            "| processes: tokens/s | CPU ms |",
            "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        one = item["clients"].get("1", {}).get("tokens_per_second", 0.0)
        for count, load in item["clients"].items():
            rate = load["tokens_per_second"]
            times = f"{rate / one:.2f}" if one else ""
            spans = [
                " / ".join(str(value) for value in load[name].values()) for name in ("first_token_ms", "answer_ms")
            ]
            apart = item["processes"].get(count, {})
            processes = f"{apart.get('tokens_per_second', '')} | {apart.get('processor_ms_per_token', '')}"
            shown = f"{rate} | {times} | {load['processor_ms_per_token']} | {spans[0]} | {spans[1]} | {load['errors']}"
            lines.append(f"| {count} | {shown} | {processes} |")
        plain = item["without_drafts"]["tokens_per_second"]
        lines += [
            "",
            f"A text that is written alone is read on along the store's documents, several tokens in a pass. Without "
            f"these drafts a process of its own writes {plain} tokens/s, one thread"
            + "".join(
                f"; {count} clients have {load['tokens_per_second'] / plain:.2f} times that"
                for count, load in item["clients"].items()
                if count == str(GOAL_CLIENTS)
            )
            + ".",
        ]
        if "overload" in item:
            load = item["overload"]
            refused = ", ".join(f"{times} times {status}" for status, times in load["refused"].items()) or "nobody"
            lines += [
                "",
                f"{load['clients']} clients at {SLOTS} slots and a queue of {QUEUE}: {load['answers']} answers, sent "
                f"away {refused}, {load['errors']} errors; the next request was answered after "
                f"{load['recovered_seconds']} s.",
            ]
        lines += ["", f"`transformers serve` without a store: {_other(item['transformers'])}."]
    lines += ["", "Goals missed: " + ("; ".join(found["missed"]) or "none") + ".", ""]
    return "\n".join([*lines, "Made by `benchmarks/serve.py`.", ""])


def _other(found: dict[str, Any]) -> str:
    if "skipped" in found:
        return f"skipped, {found['skipped']}"
    return ", ".join(f"{load['tokens_per_second']} tokens/s for {count} clients" for count, load in found.items())


if __name__ == "__main__":
    sys.exit(main())
