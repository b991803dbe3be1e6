"""Pictures of the page for docs/page.md: `python benchmarks/page.py --model MODEL --books BOOKS.jsonl`.

Serves a model over a small store, takes the journey of docs/page.md in Chromium, and writes docs/results/page-*.png in
light and dark, and page.gif, the journey as a short film (`--only film` or `--only shots` for one of them). BOOKS are
public-domain books (`id`, `text`, `metadata.title`, `metadata.author`); two short texts of other owners are written
here. Needs what `make test-page` installs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright

from page_film import Film
from silo.pairing import create_store
from silo.records import Document
from silo.server.access import create_key
from silo.server.app import build_app
from silo.server.config import ModelRecipe, ServerRecipe

OUT = Path(__file__).parent.parent / "docs" / "results"
PROMPT = "The old house stood in the midst of the great"
OWNER = "Mara Lind"
OWN = [
    Document(
        "A prairie childhood",
        "My grandmother lived in the midst of the great Kansas prairies, with her brother and a mule that nobody could "
        "catch. Their house was small, for the lumber to build it had come by train and then by cart. There was no "
        "cellar, only a small hole dug in the ground.",
        owner="Mara Lind",
        license="CC-BY-4.0",
        source="essays",
    ),
    Document(
        "Storm shelters of the plains",
        "Before a farm could pay for a cellar it had a small hole dug in the ground. When the wind rose, the family "
        "went below and waited for it to pass. The shelter was reached by a trap door in the middle of the floor",
        owner="Plains Museum",
        source="museum",
    ),
]
"""Two short texts of other owners, which have phrases in common with the books and with each other."""
MEASURED = "Their house was small, for the lumber to build it had come by train and then by cart."


def make_store(place: Path, model: Path, books: Path) -> Path:
    """A store of books, one document each, and of the texts above."""
    store = create_store(place / "library", model, searches=("ngram", "bm25"))
    records = [json.loads(line) for line in books.read_text(encoding="utf-8").splitlines()]
    facts = ((item["metadata"]["title"], item["text"], item["metadata"]["author"]) for item in records)
    named = [
        Document(title, text, owner=owner, license="CC0-1.0", source="Standard Ebooks") for title, text, owner in facts
    ]
    store.add([*named, *OWN])
    store.close()
    return place / "library"


@contextmanager
def serve(model: Path, store: Path, home: Path) -> Iterator[tuple[str, str]]:
    """The address of a server that runs while the block does, and its operator's key."""
    served = ModelRecipe(str(model), (str(store),), method="ngram")
    home.mkdir(exist_ok=True)
    _, key = create_key(home / "keys.json", roles=["operator"], name="operator")
    create_key(home / "keys.json", roles=["owner"], owner=OWNER, name="Mara Lind")
    create_key(home / "keys.json", roles=["reader"], name="newsroom", permissions=["logprobs"], policy='tier <= "by"')
    recipe = ServerRecipe(models={"smollm2": served}, home=str(home), keys=str(home / "keys.json"))
    server = uvicorn.Server(uvicorn.Config(build_app(recipe), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", key
    server.should_exit = True
    thread.join(30)


def shoot(page: Page, name: str) -> None:
    """One screenshot of what is in the window."""
    page.wait_for_timeout(400)
    page.screenshot(path=OUT / f"page-{name}.png")


def sign_in(page: Page, address: str, key: str) -> None:
    """Open the page with a key."""
    page.set_default_timeout(600_000)
    page.goto(f"{address}/#play")
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_label("Begin a text").wait_for()


def prepare(page: Page, tokens: int = 112) -> None:
    """Fill in what is to be written and how."""
    page.get_by_label("Begin a text").fill(PROMPT)
    page.get_by_text("Settings", exact=True).click()
    page.get_by_label("Length in tokens").fill(str(tokens))
    page.get_by_label("Credit this use").check()
    page.get_by_text("Settings", exact=True).click()


def write(page: Page) -> None:
    """Let it write, and wait for the end."""
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".link a").wait_for()


def inspect(page: Page, name: str) -> None:
    """The popover of a word that two documents know."""
    words = page.locator(".word")
    words.nth(16).scroll_into_view_if_needed()
    words.nth(16).click()
    page.locator("#popover .place").wait_for()
    shoot(page, name)
    page.keyboard.press("Escape")


def compare(page: Page) -> None:
    """The same prompt with and without."""
    page.get_by_role("button", name="Compare with and without").click()
    for pane in range(3):
        page.locator(".pane").nth(pane).locator(".answer[aria-busy=false]").wait_for()
    page.mouse.move(5, 5)
    page.get_by_role("heading", name="The same prompt").evaluate("(heading) => heading.scrollIntoView()")
    shoot(page, "compare")


def price(page: Page, address: str) -> None:
    """What an owner's documents are worth for a text."""
    page.goto(f"{address}/#optout?kind=owner&value={OWNER.replace(' ', '%20')}")
    page.get_by_label("Text to measure on").fill(MEASURED)
    page.get_by_role("button", name="Measure").click()
    page.locator(".priced").first.wait_for()
    page.get_by_text("1 document would go.").evaluate("(line) => line.scrollIntoView()")


def erase(page: Page) -> None:
    """An owner leaves; the receipt is checked."""
    phrase = page.locator("form:has([name=confirm]) .field > span").inner_text().removeprefix("Type: ")
    page.locator("[name=confirm]").fill(phrase)
    page.get_by_role("button", name="Erase", exact=True).click()
    page.locator(".receipt").wait_for()


def look(browser: Browser, address: str, key: str) -> None:
    """The whole journey in light, and the playground in dark and on a phone."""
    page = browser.new_page(viewport={"width": 1240, "height": 820}, color_scheme="light")
    sign_in(page, address, key)
    prepare(page)
    write(page)
    page.mouse.move(5, 5)
    shoot(page, "playground")
    inspect(page, "word")
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    shoot(page, "dark")
    page.get_by_role("button", name="Theme: dark").click()
    compare(page)
    page.goto(f"{address}/#corpus")
    page.locator(".bar").first.wait_for()
    shoot(page, "corpus")
    page.goto(f"{address}/#owner")
    page.get_by_label("Owner").select_option(OWNER)
    page.locator(".bar").first.wait_for()
    shoot(page, "owner")
    page.get_by_role("link", name=OWN[0].id).click()
    page.get_by_role("heading", name="Where it was used").wait_for()
    shoot(page, "document")
    page.goto(f"{address}/#operator")
    page.get_by_role("heading", name="Keys", exact=True).evaluate("(heading) => heading.scrollIntoView()")
    shoot(page, "operator")
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme="light")
    sign_in(phone, address, key)
    prepare(phone)
    write(phone)
    phone.locator(".result").evaluate("(result) => result.scrollIntoView()")
    shoot(phone, "phone")
    price(page, address)
    shoot(page, "optout")
    erase(page)
    shoot(page, "receipt")


def film(browser: Browser, address: str, key: str) -> None:
    """The journey as an animated picture."""
    page = browser.new_page(viewport={"width": 1120, "height": 730}, color_scheme="light")
    sign_in(page, address, key)
    prepare(page, tokens=70)
    made = Film(page)
    made.hold("Type the beginning of a text", 1.2)
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".word").first.wait_for()
    page.locator(".result").evaluate("(result) => result.scrollIntoView()")
    while page.locator(".answer[aria-busy=true]").count():
        made.frame("Every word shows the document that it came from")
    page.locator(".link a").wait_for()
    made.hold("Every word shows the document that it came from", 2.5)
    page.locator(".word").nth(16).click()
    page.locator("#popover .place").wait_for()
    made.hold("Its documents, their licences, and the place that matched", 3.5)
    page.keyboard.press("Escape")
    price(page, address)
    made.hold(f"{OWNER} wants out: see what it costs", 3.0)
    erase(page)
    made.hold("Gone, with a signed receipt that the page checks itself", 3.5)
    page.goto(f"{address}/#play")
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".answer[aria-busy=false]").wait_for()
    page.locator(".link a").wait_for()
    page.locator(".result").evaluate("(result) => result.scrollIntoView()")
    made.hold(f"The same prompt: nothing of {OWNER} any more", 4.0)
    made.save(OUT / "page.gif")


def main() -> None:
    """Make the store, serve it, and look at it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--only", choices=("shots", "film"))
    arguments = parser.parse_args()
    for name, run in (("shots", look), ("film", film)):
        if arguments.only in (None, name):
            with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
                store = make_store(Path(folder), arguments.model, arguments.books)
                with serve(arguments.model, store, Path(folder) / "home") as (address, key):
                    browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                    run(browser, address, key)
                    browser.close()


if __name__ == "__main__":
    main()
