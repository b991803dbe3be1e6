"""A browser, and a server with a tiny model and a store that has hostile documents among others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

from silo.records import Candidate
from silo.rights import assess
from silo.server.access import create_key
from silo.server.config import Limits, ModelRecipe, ServerRecipe
from silo.sources import judge
from tests.inference.world import documents, make_model, make_store
from tests.page.payloads import PAYLOADS
from tests.server.conftest import TEMPLATE, Served, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS: dict[str, dict[str, Any]] = {
    "operator": {"roles": ["operator"]},
    "owner": {"roles": ["owner"], "owner": "f"},
    "reader": {"roles": ["reader"]},
}
WAIT_MS = 180_000
"""How long the browser waits: the first text of all waits for compilers, on a machine that may be busy."""
WATCH = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.__violations.push(event.violatedDirective));
"""
"""Notes in every page what its policy had to stop."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("page")
    (place / "tokenizer").mkdir()
    (place / "tokenizer" / "chat_template.jinja").write_text(TEMPLATE)
    model = make_model(place)
    hostile = [
        judge(
            Candidate(
                f"{at}{text}", f"Payload {at}: {text}", text, text, (assess(text, where=text),), owner=text, url=text
            )
        )
        for at, text in enumerate(PAYLOADS)
    ]
    make_store(place / "store", model, documents()).close()
    make_store(place / "hostile", model, hostile).close()
    (place / "validation.jsonl").write_text('{"text": "The quick brown fox jumps over the lazy dog."}\n')
    stores = {name: str(place / name) for name in ("store", "hostile")}
    file = place / "keys.json"
    keys = {name: create_key(file, name=name, **facts)[1] for name, facts in KEYS.items()}
    recipe = ServerRecipe(
        models={
            "tiny": ModelRecipe(
                str(model), (stores["store"],), method="ngram", validation=str(place / "validation.jsonl")
            ),
            "hostile": ModelRecipe(str(model), (stores["hostile"],), method="ngram"),
            "both": ModelRecipe(str(model), tuple(stores.values()), method="ngram"),
        },
        keys=str(file),
        home=str(place / "home"),
        corpora=(str(place / "corpus"),),
        limits=Limits(),
    )
    with serving(recipe, place, keys) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright: `make test-page` installs it")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not break its own policy, run code of others, or stumble."""
    opened = browser.new_page(viewport={"width": 1200, "height": 800})
    opened.set_default_timeout(WAIT_MS)
    opened.add_init_script(WATCH)
    wrong: list[str] = []

    def refuse(dialog: Any) -> None:
        wrong.append(f"dialog {dialog.message}")
        dialog.dismiss()

    opened.on("dialog", refuse)
    opened.on("pageerror", lambda error: wrong.append(f"error {error}"))
    opened.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
    yield opened
    assert opened.evaluate("window.__violations") == []
    assert opened.evaluate("window.__executed") is None
    opened.close()
    assert wrong == []


def enter(page: Any, server: Served, role: str = "operator", view: str = "play") -> None:
    """Open a view with the key of a role."""
    page.goto(f"{server.address}/#{view}")
    page.get_by_label("Key").fill(server.keys[role])
    page.get_by_role("button", name="Open", exact=True).click()
    page.locator("nav a").first.wait_for()


def write(page: Any, prompt: str, tokens: int = 24) -> None:
    """Write a text and wait for its end."""
    page.get_by_label("Begin a text").fill(prompt)
    page.locator("details:has([name=tokens])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=tokens]").fill(str(tokens))
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".link a").wait_for()


def until(page: Any, holds: str, given: Any = None) -> None:
    """Wait for an expression to hold; the page's own policy forbids the browser to do that by itself."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(holds, given):
        assert time.monotonic() < end, holds
        page.wait_for_timeout(50)
