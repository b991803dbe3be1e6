"""The log keeps every acknowledged entry, shows every change, and survives a crash at any byte."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.files import canonical_json
from silo.store.erasure.log import NOTHING_BEFORE, AuditLog, Entry, Head

COMMITMENT = hashlib.sha256(b"salt and id").hexdigest()


def filled(path: Path, count: int = 3) -> list[Entry]:
    log = AuditLog.open(path)
    return [log.append("erased", {"documents": number, "commitments": [COMMITMENT]}) for number in range(count)]


def code(path: Path, *, read_only: bool) -> str:
    with pytest.raises(SiloError) as caught:
        AuditLog.open(path, read_only=read_only)
    return caught.value.code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_a_new_log_is_empty(path: Path) -> None:
    log = AuditLog.open(path)
    assert log.entries == ()
    assert log.head() == Head(0, NOTHING_BEFORE)
    assert path.read_bytes() == b""


def test_entries_come_back_as_they_were_appended(path: Path) -> None:
    log = AuditLog.open(path)
    first = log.append("accepted", {"documents": 2, "drained": False, "nested": {"digest": [COMMITMENT]}})
    second = log.append("erased", {})
    for again in (AuditLog.open(path), AuditLog.open(path, read_only=True)):
        assert again.entries == (first, second)
        assert again.head() == (2, second.hash) == log.head()
    assert (first.n, first.previous, second.previous) == (1, NOTHING_BEFORE, first.hash)
    assert first.content == {"documents": 2, "drained": False, "nested": {"digest": [COMMITMENT]}}


def test_each_line_is_canonical_and_holds_the_hash_of_the_line_before(path: Path) -> None:
    entries = filled(path)
    lines = path.read_bytes().splitlines()
    previous = NOTHING_BEFORE
    for number, (line, entry) in enumerate(zip(lines, entries, strict=True), start=1):
        fields = json.loads(line)
        assert canonical_json(fields) == line
        assert (fields["n"], fields["previous"], fields["kind"]) == (number, previous, "erased")
        previous = hashlib.sha256(line).hexdigest()
        assert entry.hash == previous


@pytest.mark.parametrize("read_only", [True, False])
def test_every_changed_byte_is_an_error(path: Path, read_only: bool) -> None:
    filled(path)
    data = path.read_bytes()
    with path.open("r+b", buffering=0) as stream:
        for at in range(len(data)):
            for flip in (1, 0x20, 0x80, data[at]):
                os.pwrite(stream.fileno(), bytes([data[at] ^ flip]), at)
                assert code(path, read_only=read_only) == "store-damaged", f"byte {at}"
            os.pwrite(stream.fileno(), data[at : at + 1], at)
    assert path.read_bytes() == data


def test_missing_swapped_repeated_and_foreign_lines_are_errors(path: Path) -> None:
    filled(path, 4)
    a, b, c, d = path.read_bytes().splitlines(keepends=True)
    for lines in ([b, c, d], [a, c, d], [a, b, d], [b, a, c, d], [a, a, b], [a, b, b], [a, b"\n", b], [b"\n"]):
        path.write_bytes(b"".join(lines))
        assert code(path, read_only=False) == "store-damaged"


def test_a_rewritten_entry_breaks_the_chain_after_it(path: Path) -> None:
    filled(path, 3)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    forged = path.with_name("forged.jsonl")
    AuditLog.open(forged).append("erased", {"documents": 99, "commitments": [COMMITMENT]})
    path.write_bytes(forged.read_bytes() + b"".join(rest))
    assert first != forged.read_bytes()
    assert code(path, read_only=True) == "store-damaged"


def test_a_torn_last_line_is_passed_over_by_readers_and_cut_off_by_the_writer(path: Path) -> None:
    entries = filled(path)
    data = path.read_bytes()
    whole = data.rindex(b"\n", 0, -1) + 1
    for size in [*range(whole + 1, len(data), 16), len(data) - 1]:
        path.write_bytes(data[:size])
        assert AuditLog.open(path, read_only=True).entries == tuple(entries[:2])
        assert path.stat().st_size == size
        log = AuditLog.open(path)
        assert path.read_bytes() == data[:whole]
        assert log.append("erased", {"documents": 2, "commitments": [COMMITMENT]}) == entries[2]
        assert path.read_bytes() == data


def test_blocks_of_zeros_after_a_power_cut_are_a_torn_line(path: Path) -> None:
    entries = filled(path)
    data = path.read_bytes()
    path.write_bytes(data + b'{"check"' + bytes(50))
    assert AuditLog.open(path).entries == tuple(entries)
    assert path.read_bytes() == data


@given(st.binary(max_size=300))
def test_foreign_bytes_are_never_taken_for_entries(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    path.write_bytes(data)
    try:
        assert AuditLog.open(path).entries == ()
    except SiloError as error:
        assert error.code == "store-damaged"


@pytest.mark.parametrize(
    "content",
    [
        {"document": "0123456789abcdef0123456789abcdef"},
        {"deep": [{"0123456789abcdef0123456789abcdef": 1}]},
        {"text": "word " * 40},
        {"share": 0.5},
        {"bytes": b"text"},
        {"n": 7},
        {"previous": NOTHING_BEFORE},
        {"kind": "other"},
        {"check": "x"},
    ],
)
def test_ids_text_and_the_logs_own_fields_are_refused(path: Path, content: dict[str, object]) -> None:
    log = AuditLog.open(path)
    with pytest.raises(ValueError, match="the log"):
        log.append("erased", content)
    with pytest.raises(ValueError, match="kind of an entry"):
        log.append("Not a kind", {})
    assert path.read_bytes() == b""
    assert log.append("erased", {}).n == 1


def test_a_failed_write_stops_the_log_until_it_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = filled(path)
    log = AuditLog.open(path)
    real = os.write

    def disk_full_halfway(handle: int, data: bytes) -> int:
        if len(data) > 20:
            return real(handle, data[:20])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", lambda handle, data: disk_full_halfway(handle, bytes(data)[:40]))
    with pytest.raises(SiloError) as caught:
        log.append("erased", {})
    assert caught.value.code == "disk-full"
    monkeypatch.undo()
    with pytest.raises(SiloError) as caught:
        log.append("erased", {})
    assert caught.value.code == "disk-failed"
    assert log.entries == tuple(entries)
    assert AuditLog.open(path).append("erased", {}).n == 4


def test_a_failed_fsync_is_no_acknowledgement(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog.open(path)

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, "failed")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SiloError) as caught:
        log.append("erased", {})
    assert caught.value.code == "disk-failed"
    assert log.entries == ()


def test_every_append_is_synced_before_it_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog.open(path)
    synced: list[int] = []
    real = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.fstat(handle).st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", noting)
    for _ in range(3):
        log.append("erased", {})
        assert synced[-1] == path.stat().st_size
    assert len(synced) == 3


def test_a_second_writer_is_noticed(path: Path) -> None:
    first, second = AuditLog.open(path), AuditLog.open(path)
    first.append("erased", {})
    with pytest.raises(SiloError) as caught:
        second.append("erased", {})
    assert caught.value.code == "busy"
    path.unlink()
    with pytest.raises(SiloError) as caught:
        first.append("erased", {})
    assert caught.value.code == "store-damaged"


def test_readers_change_nothing(path: Path) -> None:
    assert code(path, read_only=True) == "input-missing"
    assert not path.exists()
    filled(path)
    with pytest.raises(ValueError, match="for reading"):
        AuditLog.open(path, read_only=True).append("erased", {})


KILLED = """
import sys
from pathlib import Path
from silo.store.erasure.log import AuditLog
log = AuditLog.open(Path(sys.argv[1]))
while True:
    print(log.append("erased", {"documents": 1}).n, flush=True)
"""


def test_no_acknowledged_entry_is_lost_when_the_writer_is_killed(path: Path) -> None:
    acknowledged = 0
    for kill_after in (1, 3, 2, 5, 4):
        command = [sys.executable, "-c", KILLED, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(kill_after):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split("\n")[:-1])])
        entries = AuditLog.open(path, read_only=True).entries
        assert acknowledged <= len(entries) <= acknowledged + 1
        assert [entry.n for entry in entries] == list(range(1, len(entries) + 1))
