"""`kill -9` before every write, fsync, rename and unlink of `silo lm codec`: the model is there, old or new, whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.files import locked_directory
from silo.lm.firewall import what_it_shaped
from silo.lm.manifest import open_manifest, recover_model, verify_files
from silo.search.knn.codec import Codec
from tests.reliability.codec_nursery import TWO, install, make_codec, make_model

FEWEST_KILLS = 30


@pytest.mark.slow
def test_a_model_survives_a_kill_before_every_call(tmp_path: Path) -> None:
    nursery = [sys.executable, "-m", "tests.reliability.codec_nursery", str(tmp_path)]
    done = subprocess.run(nursery, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    ends = done.stdout.split()
    assert done.returncode == 0, done.stderr
    assert ends[-1] == "done"
    codec, between = make_codec(), 0
    for number in range(1, len(ends) + 1):
        model = tmp_path / str(number) / "model"
        between += not model.exists()
        manifest = open_manifest(model)
        verify_files(model, manifest)
        if "codec" in manifest:
            assert Codec.open(model / "codec").fingerprint == codec.fingerprint
        assert what_it_shaped(model, TWO) == (["codec"] if "codec" in manifest else [])
        install(model, codec)
        assert open_manifest(model)["codec"] == codec.fingerprint
        assert [path.name for path in model.parent.iterdir()] == ["model"]
    print(f"proven kills {len(ends) - 1}, {between} between two names, models lost 0")
    assert between > 0
    assert len(ends) > FEWEST_KILLS


def test_what_an_earlier_version_left_is_put_back_whole(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    shutil.copytree(model, tmp_path / "model.saving")
    (tmp_path / "model.saving" / "model.safetensors").write_bytes(b"")  # the copy was never synced
    model.rename(tmp_path / "model.old")
    assert not (tmp_path / "model").exists()
    verify_files(model, open_manifest(model))


def test_a_folder_that_somebody_keeps_as_old_is_left_alone(tmp_path: Path) -> None:
    make_model(tmp_path / "model.old")
    with pytest.raises(SiloError, match="input-missing"):
        open_manifest(tmp_path / "model")
    install(make_model(tmp_path / "model"), make_codec())
    verify_files(tmp_path / "model.old", open_manifest(tmp_path / "model.old"))


def test_a_reader_waits_for_a_writer_that_is_alive(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    shutil.copytree(model, tmp_path / "model.saving")
    model.rename(tmp_path / "model.replaced")
    found: list[bool] = []
    with locked_directory(tmp_path / "model.saving"):
        reader = threading.Thread(target=lambda: found.append(recover_model(model)))
        reader.start()
        reader.join(0.2)
        assert reader.is_alive()
        (tmp_path / "model.saving").rename(model)
    reader.join(5)
    assert found == [True]
    verify_files(model, open_manifest(model))


def test_two_codecs_for_one_model_do_not_meet(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    (tmp_path / "model.saving").mkdir()
    with locked_directory(tmp_path / "model.saving"), pytest.raises(SiloError) as caught:
        install(model, make_codec())
    assert caught.value.code == "busy"
    verify_files(model, open_manifest(model))
