"""`kill -9` at random instants of a real build in its own process: it resumes, and ends with the same bytes.

`SILO_KILLS` sets how many kills are made (make reliability: 60). A kill counts only if the build was still running.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import record, words, write_jsonl
from tests.corpus.test_build import _mixed_records, _tree

KILLS = int(os.environ.get("SILO_KILLS", "4"))


def _start(files: list[Path], out: Path) -> subprocess.Popen[bytes]:
    code = "from silo.cli import main; import sys; sys.exit(main())"
    names = [str(file) for file in files]
    command = [sys.executable, "-c", code, "corpus", "build", "--jsonl", *names, "--out", str(out), "--json"]
    return subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_listen_to_interrupts,
    )


def _listen_to_interrupts() -> None:
    """A background job of a shell ignores interrupts, and so would all it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill(process: subprocess.Popen[bytes], *, workers_too: bool) -> None:
    """Kill the whole group, or only the process that was started: its workers must then end by themselves."""
    if workers_too:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def _finish(files: list[Path], out: Path) -> float:
    start = time.monotonic()
    process = _start(files, out)
    _, errors = process.communicate()
    assert process.returncode == 0, errors.decode()
    return time.monotonic() - start


def _inputs(place: Path, rng: random.Random) -> list[Path]:
    large = [record(f"b{number}", words(number + 1000, 400), domain=f"d{number % 5}") for number in range(300)]
    files = [write_jsonl(place / f"{number}.jsonl", _mixed_records(rng)) for number in range(6)]
    return [*files, write_jsonl(place / "large.jsonl", large)]


def test_a_killed_build_resumes_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    rng = random.Random(11)
    files = _inputs(tmp_path, rng)
    seconds = _finish(files, tmp_path / "whole")
    expected = _tree(tmp_path / "whole")
    made = 0
    for attempt in range(10 * KILLS):
        out = tmp_path / f"killed-{attempt}"
        for _ in range(rng.randint(1, 3)):
            process = _start(files, out)
            time.sleep(rng.uniform(0.1 * seconds, seconds))
            running = process.poll() is None
            if running:
                _kill(process, workers_too=rng.random() < 0.5)
                made += 1
            process.communicate()
            if (out / "manifest.json").exists():
                assert _tree(out) == expected
        seconds = min(seconds, _finish(files, out))
        assert _tree(out) == expected
        assert not out.with_name(out.name + ".building").exists()
        if made >= KILLS:
            break
    print(f"proven kills {made}, differences 0")
    assert made >= KILLS, f"only {made} kills hit a running build"


def test_an_interrupt_ends_quickly_with_two_lines(tmp_path: Path) -> None:
    files = _inputs(tmp_path, random.Random(5))
    process = _start(files, tmp_path / "out")
    deadline = time.monotonic() + 20
    while not list((tmp_path / "out.building").glob("work/read/*/run-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors.decode().splitlines() == [
        "error: stopped by the user [interrupted]",
        "hint: run the same command again: it resumes",
    ]
    _finish(files, tmp_path / "out")


def test_two_builds_of_one_corpus_do_not_meet(tmp_path: Path) -> None:
    files = _inputs(tmp_path, random.Random(5))
    first, second = _start(files, tmp_path / "out"), _start(files, tmp_path / "out")
    ends = [(process.communicate()[1].decode(), process.returncode) for process in (first, second)]
    assert sorted(status for _, status in ends) in ([0, 0], [0, 7])
    _finish(files, tmp_path / "out")


def test_no_interrupt_reaches_a_worker_that_is_starting() -> None:
    code = (
        "from silo.corpus.workers import _start_worker\n"
        "if __name__ == '__main__':\n"
        "    link, process = _start_worker(dict, None)\n"
        "    print(open(f'/proc/{process.pid}/status').read())\n"
        "    link.close(); process.join()\n"
    )
    status = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigBlk")]
    assert int(mask, 16) & 1 << (signal.SIGINT - 1), "the first worker starts with interrupts blocked, too"
