"""Folders at a URL, as corpora are: published whole, fetched with checksums, changed in one swap."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from silo.cli.main import main
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.remote.cache import Cache
from silo.remote.folder import fetched, made_at, publish_changes
from silo.remote.head import HEAD, Head, Part, is_garbage, new_object
from silo.remote.objects import Objects
from silo.remote.publish import read_head


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SILO_HOME", str(tmp_path / "home"))
    return f"file://{tmp_path}/remote"


def _publish(url: str, text: str, *, force: bool = False) -> None:
    with made_at(Path(url), force=force) as place:
        (place / "shards").mkdir(parents=True)
        (place / "shards" / "0").write_text(text)
        (place / "manifest.json").write_text("{}")


def test_a_folder_is_published_whole_and_fetched_as_it_was(url: str, tmp_path: Path) -> None:
    _publish(url, "one")
    place = fetched(Path(url))
    assert (place / "shards" / "0").read_text() == "one"
    assert not list((tmp_path / "home" / "cache" / "made").iterdir())
    with pytest.raises(SiloError) as caught, made_at(Path(url)):
        raise AssertionError("it must be refused before anything is made")
    assert caught.value.code == "out-exists"
    _publish(url, "two", force=True)
    assert (fetched(Path(url)) / "shards" / "0").read_text() == "two"
    assert len(Objects.at(url).names()) == 2


def test_a_change_is_published_and_two_at_once_are_not(url: str) -> None:
    _publish(url, "one")
    place = fetched(Path(url))
    (place / "opt-outs.json").write_text("[]")
    publish_changes(place)
    assert (fetched(Path(url)) / "opt-outs.json").read_text() == "[]"
    _publish(url, "three", force=True)
    (place / "opt-outs.json").write_text("[1]")
    with pytest.raises(SiloError) as caught:
        publish_changes(place)
    assert caught.value.code == "remote-conflict"


def test_folders_do_not_begin_inside_each_other(url: str, tmp_path: Path) -> None:
    _publish(f"{url}/one", "one")
    for other in (url, f"{url}/one/two"):
        with pytest.raises(SiloError) as caught:
            _publish(other, "two")
        assert caught.value.code == "out-exists"
    (tmp_path / HEAD).write_text("{}")  # of somebody else, and no head
    _publish(f"{url}/two", "two")


def test_a_corpus_that_is_built_anew_keeps_who_opted_out(url: str, tmp_path: Path) -> None:
    text = "Some public domain text, long enough to be kept as it is. "
    records = [{"id": f"d{at}", "text": f"{text * 8}{at}" * 2, "license": "CC0-1.0"} for at in range(3)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    build = ["corpus", "build", "--jsonl", str(tmp_path / "in.jsonl"), "--out", url, "--workers", "1", "--quiet"]
    assert main(build) == 0
    corpus = Corpus.open(Path(url))
    gone = next(corpus.documents()).id
    corpus.opt_out([gone])
    assert main([*build, "--force"]) == 0
    assert Corpus.open(Path(url)).opted_out() == {gone}
    assert gone not in {document.id for document in Corpus.open(Path(url)).documents()}


def test_a_path_of_this_machine_is_itself(tmp_path: Path) -> None:
    assert fetched(tmp_path) == tmp_path
    with made_at(tmp_path / "here") as place:
        assert place == tmp_path / "here"
    publish_changes(tmp_path)


def test_what_was_fetched_with_another_checksum_is_refused(url: str, tmp_path: Path) -> None:
    _publish(url, "one")
    objects = Objects.at(url)
    (name,) = (item for item in objects.names() if item.startswith("shards/"))
    (tmp_path / "remote" / name).write_text("six")
    with pytest.raises(SiloError) as caught:
        fetched(Path(url))
    assert caught.value.code == "remote-damaged"


def test_copies_of_processes_that_are_gone_are_removed(url: str, tmp_path: Path) -> None:
    cache = Cache(Objects.at(url))
    left, held = cache.root / "copies" / "left", cache.new_copy()
    left.mkdir()
    left.with_name("left.lock").touch()
    (left / "bucket").write_text("text")
    held.root.mkdir()
    cache.new_copy().close()
    assert not left.exists() and held.root.exists()


def test_what_a_process_that_was_killed_had_half_fetched_is_removed(url: str, tmp_path: Path) -> None:
    _publish(url, "a text that is to go")
    program = (
        "import os, signal, sys; from pathlib import Path; from silo.remote.objects import Objects;"
        "from silo.remote.folder import fetched; get = Objects.get;"
        "die = lambda: os.kill(os.getpid(), signal.SIGKILL);"
        "Objects.get = lambda *given: [get(*given), given[1].startswith('shards/') and die()][0];"
        "fetched(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode < 0

    def held() -> list[Path]:
        files = (path for path in (tmp_path / "home" / "cache").rglob("*") if path.is_file())
        return [path for path in files if "to go" in path.read_text()]

    assert held(), "the program was killed too early"
    head = Head.first()
    assert Cache(Objects.at(url)).count_strays(head, "shards", 0) == 0 and not held()


@pytest.mark.parametrize("protocol", ["reference", "dir", "generic", "dbfs", "jupyter", "hdfs", "nonsense"])
def test_a_file_system_that_cannot_be_used_is_an_error_that_says_so(url: str, protocol: str) -> None:
    with pytest.raises(SiloError) as caught:
        fetched(Path(f"{protocol}://127.0.0.1:1/x"))
    assert caught.value.code in ("remote-failed", "extra-missing", "usage")


class PlainFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """One that takes no options, as that of gists."""

    protocol = "silo-plain"

    def __init__(self) -> None:
        super().__init__()


def test_a_file_system_need_not_take_options(url: str) -> None:
    fsspec.register_implementation("silo-plain", PlainFileSystem, clobber=True)
    assert Objects.at("silo-plain://x").names() == []


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"id": "x"}'])
def test_a_note_of_the_cache_that_was_damaged_is_made_anew(url: str, tmp_path: Path, text: str) -> None:
    _publish(url, "one")
    cache, head = Cache(Objects.at(url)), read_head(Objects.at(url))
    assert head is not None
    (cache.root / "seen.json").write_text(text)
    cache.require_newest(head)
    assert json.loads((cache.root / "seen.json").read_text())["number"] == 1


def test_a_cache_that_is_a_file_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _publish(url, "one")
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        monkeypatch.setenv("SILO_CACHE", str(tmp_path / place))
        with pytest.raises(SiloError) as caught:
            fetched(Path(url))
        assert caught.value.code == "usage"


def test_only_what_no_head_can_name_is_garbage() -> None:
    head = Head("id", 7, "", {"a": Part(new_object("a", 3), "0", 1)})
    (named,) = head.objects
    assert not is_garbage(named, head)
    assert is_garbage(new_object("a", 6), head)
    assert not is_garbage(new_object("a", 7), head), "somebody may be about to publish it"
    assert not is_garbage("something-else", head)


_NOW = "2026-01-01T00:00:00+00:00"
_PART = Part(new_object("a", 0), "0" * 64, 1)


def _decodes(head: Head) -> bool:
    try:
        return Head.decode(head.encode(), "url") == head
    except SiloError as error:
        assert error.code == "remote-damaged"
        return False


def _head(files: dict[str, Part], **changed: Any) -> Head:
    return Head(**{"id": "0" * 32, "number": 1, "at": _NOW, "files": files, **changed})


def test_a_head_cannot_name_files_outside() -> None:
    assert _decodes(_head({"a": _PART, "b/c": _PART}))
    for name in ("../x", "/etc/x", "a//b", "a/../../b", "a\\b", "a\0b", "a" * 248, "b/" * 600 + "c", ""):
        assert not _decodes(_head({name: _PART})), name
    assert not _decodes(_head({"a": _PART, "a/b/c": _PART})), "a file that is a folder too"


@pytest.mark.parametrize("sha256", ["../../../keys/x.pem", "/etc/passwd", "0" * 63, "0" * 64 + "\n", "A" * 64, [], 3])
def test_a_head_cannot_name_files_by_a_checksum(sha256: Any) -> None:
    assert not _decodes(_head({"a": Part(_PART.object, sha256, 1)}))


@pytest.mark.parametrize(
    "name", ["../other.txt", "notes.txt", "../a.000000-0123456789abcdef", "\0.000000-0123456789abcdef", 3]
)
def test_a_head_cannot_name_objects_that_no_writer_made(name: Any) -> None:
    assert not _decodes(_head({"a": Part(name, "0" * 64, 1)}))


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "x"},
        {"id": 3},
        {"number": -1},
        {"number": 1.0},
        {"number": True},
        {"at": ""},
        {"at": "2026-01-01T00:00:00"},
    ],
)
def test_a_head_is_of_the_types_that_a_writer_writes(changed: dict[str, Any]) -> None:
    assert not _decodes(_head({}, **changed))
    for size in (-1, "1", True, None):
        assert not _decodes(_head({"a": Part(_PART.object, "0" * 64, size)}))  # type: ignore[arg-type]


def test_a_forged_head_reads_and_removes_nothing_of_this_machine(url: str, tmp_path: Path) -> None:
    _publish(url, "one")
    precious = tmp_path / "precious.txt"
    precious.write_text("thesis")
    head = read_head(Objects.at(url))
    assert head is not None
    forged = replace(head, number=2, files={**head.files, "x": Part("x", str(precious), 6)})
    (tmp_path / "remote" / HEAD).write_bytes(forged.encode())
    with pytest.raises(SiloError) as caught:
        fetched(Path(url))
    assert caught.value.code == "remote-damaged" and precious.read_text() == "thesis"
