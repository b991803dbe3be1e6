"""`silo serve` as a user starts and stops it, its TOML file, and the page of its API."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from silo.cli import main
from silo.errors import SiloError
from silo.server.app import make_app
from silo.server.config import read_config
from silo.server.models import Catalogue
from tests.server.api_page import PAGE, render
from tests.server.conftest import Served


def test_the_page_of_the_api_is_that_of_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(make_app().openapi())


def test_a_stopped_server_finishes_what_is_under_way(served: Served) -> None:
    place = served.place
    command = [
        "serve",
        "--model",
        place / "model",
        "--store",
        place / "store",
        "--port",
        "0",
        "--home",
        place / "other",
    ]
    with subprocess.Popen([sys.executable, "-m", "silo", *map(str, command)], stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        address = next(match[1] for line in run.stderr if (match := re.search(r"at (http://\S+)", line)))
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
            options: Any = {"model": "model", "prompt": "The sea", "max_tokens": 60, "temperature": 0}
            stream = client.completions.create(**options, stream=True)
            first = next(iter(stream))
            run.send_signal(signal.SIGTERM)
            chunks = [first, *stream]
        run.stderr.read()
        assert run.wait(60) in (0, -signal.SIGTERM)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_a_client_that_leaves_frees_the_engine(served: Served) -> None:
    service = served.app.state.service
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key=served.keys["reader"], max_retries=0) as client:
        options: Any = {"model": "tiny", "prompt": "The sea", "max_tokens": 64, "temperature": 0, "n": 4}
        stream = client.completions.create(**options, stream=True)
        next(iter(stream))
        stream.close()
    end = time.monotonic() + 20
    while service.engine.running and time.monotonic() < end:
        time.sleep(0.01)
    assert service.engine.running == 0


def test_several_models_of_a_file(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    model, store = served.place / "model", served.place / "store"
    file.write_text(
        f'[models.both]\nmodel = "{model}"\nstores = ["{store}"]\nmethod = "ngram"\nguard = 5\n'
        f'[models.alone]\nmodel = "{model}"\n[limits]\nmax_tokens = 10\n'
    )
    recipe = read_config(file)
    assert recipe.home == str(tmp_path / "silo-home")
    assert recipe.limits.max_tokens == 10
    catalogue = Catalogue.open(recipe)
    assert catalogue.models["both"].method == {"ngram"}
    assert catalogue.models["alone"].method == frozenset()
    assert list(catalogue.stores) == ["store"]
    catalogue.close()
    file.write_text("[models.a]\nmodle = 1\n")
    with pytest.raises(SiloError, match="did you mean 'model'"):
        read_config(file)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 2),
        (["--store", "x"], 2),
        (["--model", "x", "--host", "0.0.0.0"], 2),
        (["--model", "x", "--port", "70000"], 2),
        (["none.toml"], 2),
        (["--model", "no-model"], 3),
        (["--model", "no-model", "--keys", "no-keys.json"], 3),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(
    options: list[str], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *options]) == status


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "silo.server.app")
    assert main(["serve", "--model", "x"]) == 6
    assert "silo-lm[serve]" in capsys.readouterr().err
