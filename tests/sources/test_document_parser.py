"""The process that parses: bounded in time and memory, replaced when it dies, gone when nobody needs it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from silo.errors import CODES, SiloError
from silo.recipe import Limits
from silo.sources.documents.parser import DocumentParser
from tests.sources.reading import bad, read_source, write

SMALL = b"a,b\n1,2\n"
SLOW = b"<p>x</p>" * 2_000_000
"""A page that takes many seconds, and nothing else."""


def pid_of(parser: DocumentParser) -> int:
    process = parser._process
    assert process is not None
    return process.pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_one_process_serves_many_files_and_ends_with_the_parser() -> None:
    with DocumentParser(Limits()) as parser:
        parser.parse("csv", SMALL)
        pid = pid_of(parser)
        with pytest.raises(SiloError):
            parser.parse("docx", b"no")
        parser.parse("csv", SMALL)
        assert pid_of(parser) == pid and is_alive(pid)
    assert not is_alive(pid)


def test_a_file_that_takes_too_much_memory_is_given_up_and_the_next_one_is_read() -> None:
    with DocumentParser(Limits(max_parse_mb=24)) as parser:
        parser.parse("csv", SMALL)
        with pytest.raises(SiloError) as caught:
            parser.parse("notebook", b'{"cells": [' + b"[]," * 500_000 + b"[]]}")
        assert caught.value.code == "parse-memory" and "max_parse_mb" in caught.value.hint
        assert parser.parse("csv", SMALL).text


def test_a_process_that_died_is_replaced_without_a_loss() -> None:
    with DocumentParser(Limits()) as parser:
        parser.parse("csv", SMALL)
        dead = pid_of(parser)
        os.kill(dead, signal.SIGSEGV)
        assert parser.parse("csv", SMALL).text
        assert pid_of(parser) != dead


def test_a_file_of_which_the_parser_dies_is_named_with_the_signal() -> None:
    with DocumentParser(Limits()) as parser:

        def crash_soon() -> None:
            while parser._process is None:
                time.sleep(0.01)
            time.sleep(0.2)
            os.kill(pid_of(parser), signal.SIGSEGV)

        killer = threading.Thread(target=crash_soon)
        killer.start()
        with pytest.raises(SiloError, match="SIGSEGV") as caught:
            parser.parse("html", SLOW)
        killer.join()
        assert caught.value.code == "parse-crashed"


def test_a_folder_survives_a_file_that_takes_too_much(tmp_path: Path) -> None:
    write(tmp_path, {"in/a.csv": SMALL, "in/b.html": SLOW, "in/c.csv": SMALL, "in/d.csv": b"x,y\n" * 5_000})
    limits = Limits(max_parse_seconds=1, max_record_bytes=40 << 20)
    items = read_source(tmp_path, "folder", "in", limits=limits)
    assert bad(items) == [("in/b.html", "parse-timeout")]
    assert "max_parse_seconds" in CODES["parse-timeout"].hint
    assert len(items) == 4


def test_nothing_is_started_and_nothing_is_left_where_reading_is_broken_off(tmp_path: Path) -> None:
    parser = DocumentParser(Limits())
    parser.close()
    with pytest.raises(SiloError, match="larger"), DocumentParser(Limits(max_record_bytes=3)) as small:
        small.parse("csv", SMALL)
    assert small._process is None


def test_a_module_in_the_current_folder_is_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csv.py").write_text("raise SystemExit('imported from a folder of documents')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    with DocumentParser(Limits()) as parser:
        assert parser.parse("csv", SMALL).text
