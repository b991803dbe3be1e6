"""Stores on S3, against a server of this machine: conditional writes, two writers, versions, no answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from silo.errors import SiloError
from silo.records import Document
from silo.remote.objects import Objects
from silo.store.remote.store import open_remote
from silo.store.selector import Selector
from tests.store.remote.homes import DOCUMENTS, make_remote, reopened
from tests.store.small import small_store, tree

pytest.importorskip("s3fs", reason="stores on S3 need s3fs")
server = pytest.importorskip("moto.server", reason="a server that answers as S3 does is in moto")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty bucket, and a plain client for it."""
    import boto3
    import s3fs

    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3", endpoint_url=endpoint)
    name = f"bucket-{abs(hash(request.node.name)) % 10**9}"
    client.create_bucket(Bucket=name)
    yield client, name
    client.close()
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_on_s3_is_that_of_a_directory_and_forgets(bucket: Any, tmp_path: Path) -> None:
    client, name = bucket
    url = f"s3://{name}/stores/mine"
    store = make_remote(url)
    store.add(DOCUMENTS)
    twin = small_store(tmp_path / "local", searches=("ngram",))
    twin.add(DOCUMENTS)
    reader = open_remote(url)
    assert tree(reader.paths.data) == tree(twin.paths.data)
    done = store.erase(Selector(document="d3"))
    twin.erase(Selector(document="d3"))
    assert done.failed_checks == [] and done.unmade_checks == []
    assert not reader.holds(DOCUMENTS[3].id)
    assert tree(reader.paths.data) == tree(twin.paths.data)
    listed = {item["Key"] for item in client.list_objects_v2(Bucket=name)["Contents"]}
    assert listed == {f"stores/mine/{item}" for item in ("head.json", *Objects.at(url).names())}
    assert store.verify().problems == ()


def test_of_two_writers_that_swap_at_once_one_is_told(bucket: Any) -> None:
    url = f"s3://{bucket[1]}/store"
    make_remote(url).close()
    objects = Objects.at(url)
    base = objects.read_head()
    outcomes: list[str] = []

    def swap(data: bytes) -> None:
        try:
            Objects.at(url).swap_head(data, base)
            outcomes.append("won")
        except SiloError as error:
            outcomes.append(error.code)

    racers = [threading.Thread(target=swap, args=(f"head {number}".encode(),)) for number in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert sorted(outcomes) == ["remote-conflict"] * 3 + ["won"]


def test_a_store_is_made_once(bucket: Any) -> None:
    url = f"s3://{bucket[1]}/store"
    make_remote(url).close()
    with pytest.raises(SiloError) as caught:
        make_remote(url)
    assert caught.value.code == "out-exists"


def test_the_second_of_two_writers_is_told(bucket: Any) -> None:
    url = f"s3://{bucket[1]}/store"
    first, second = make_remote(url), reopened(url)

    def documents() -> Iterator[Document]:
        yield DOCUMENTS[0]
        second.add(DOCUMENTS[1:3])

    with pytest.raises(SiloError) as caught:
        first.add(documents())
    assert caught.value.code == "remote-conflict"
    assert {item.external_id for item in first.documents()} == {"d1", "d2"}


def test_a_bucket_that_keeps_versions_is_said_to(bucket: Any) -> None:
    client, name = bucket
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    store = make_remote(f"s3://{name}/store")
    store.add(DOCUMENTS[:2])
    done = store.erase(Selector(document="d1"))
    assert done.failed_checks == ["remote-versions-gone"]
    assert "object versions" in store.verify().unchecked


def test_a_server_that_does_not_answer_is_an_error(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(SiloError) as caught:
        open_remote(f"s3://{bucket[1]}/store")
    assert caught.value.code == "remote-failed"
