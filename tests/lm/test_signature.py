"""Signed models: who changed, forged or swapped something is found out, and only a trusted key makes them genuine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from silo.cli.main import main
from silo.corpus.corpus import Corpus
from silo.errors import SiloError
from silo.lm.audit import SIGNATURE, check_signature, sign_model
from silo.lm.codec import learn_codec
from silo.search.knn.codec import CodecSettings
from tests.inference.world import make_model


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("signed")
    make_model(root)
    (root / "keys").mkdir()
    sign_model(root / "model", root / "keys" / "mine")
    return root


@pytest.fixture
def model(world: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(world / "model", tmp_path / "model"))


def _public(world: Path) -> bytes:
    return (world / "keys" / "mine.pub").read_bytes()


def test_a_signed_model_is_genuine_by_the_key_one_trusts_alone(world: Path, model: Path) -> None:
    assert check_signature(model, _public(world)) == "genuine"
    assert check_signature(model, None) == "self-consistent"
    sign_model(model, world / "keys" / "forger")
    assert check_signature(model, None) == "self-consistent"
    with pytest.raises(SiloError, match="another key"):
        check_signature(model, _public(world))
    (model / SIGNATURE).unlink()
    assert check_signature(model, None) == "not signed"
    with pytest.raises(SiloError, match="not signed"):
        check_signature(model, _public(world))


def test_every_altered_byte_of_the_signature_is_noticed(world: Path, model: Path) -> None:
    sound = (model / SIGNATURE).read_bytes()
    for at in range(len(sound)):
        altered = sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :]
        (model / SIGNATURE).write_bytes(altered)
        try:
            same = json.loads(altered) == json.loads(sound)
        except ValueError:
            same = False
        if not same:
            with pytest.raises(SiloError, match="model-damaged"):
                check_signature(model, _public(world))


def test_a_model_that_changed_is_not_the_signed_one(world: Path, model: Path) -> None:
    manifest = json.loads((model / "manifest.json").read_text())
    manifest["origin"] = "forged"
    (model / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(SiloError, match="model-damaged"):
        check_signature(model, _public(world))


def test_learning_a_codec_takes_the_signature_with_it(world: Path, model: Path) -> None:
    learn_codec(model, Corpus.open(world / "corpus"), CodecSettings(lists=8, code_bytes=8), keys=2000)
    with pytest.raises(SiloError, match="model-damaged"):
        check_signature(model, _public(world))


def test_damaged_models_are_not_signed(world: Path, model: Path) -> None:
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with pytest.raises(SiloError, match="model-damaged"):
        sign_model(model, world / "keys" / "mine")


def test_the_commands(world: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm", "sign", str(model), "--key", str(tmp_path / "key"), "--json"]) == 0
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["lm", "verify", str(model), "--key", str(tmp_path / "key.pub"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signature"] == "genuine"
    assert main(["lm", "verify", str(model), "--key", str(world / "keys" / "mine.pub"), "--json"]) == 4
