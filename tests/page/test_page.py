"""The page in a real browser: the journey from a text to a receipt, who sees what, keys alone, and hostile data."""

from __future__ import annotations

import json
import logging
import time
import unicodedata
from typing import Any

import pytest

from tests.page.conftest import WAIT_MS, enter, until, write
from tests.page.payloads import PAYLOADS
from tests.server.conftest import Served

_LOG = logging.getLogger(__name__)
PROMPT = "Tea is made with hot"
VIEWS = ("play", "documents", "optout", "owner", "operator", "corpus")
LONGEST_FRAME_MS = 100


def _erase(page: Any) -> None:
    """Confirm what the desk shows and wait for the receipt."""
    phrase = page.locator("form:has([name=confirm]) .field > span").inner_text().removeprefix("Type: ")
    erase = page.get_by_role("button", name="Erase", exact=True)
    assert erase.is_disabled()
    page.locator("[name=confirm]").fill(phrase)
    erase.click()
    page.locator(".receipt").wait_for()


def test_from_a_text_to_a_receipt_and_no_trace_in_the_next_text(page: Any, server: Served) -> None:
    enter(page, server)
    write(page, PROMPT)
    assert "came from" in page.locator(".summary").inner_text()
    assert "tea" in page.locator("aside .bars").inner_text()

    page.locator(".word").nth(2).hover()
    card = page.locator("#popover")
    card.get_by_text("no licence stated").first.wait_for()
    assert "hot water" in card.locator(".place").inner_text()
    link = page.locator(".link a").get_attribute("href")

    page.get_by_role("button", name="Compare with and without").click()
    until(page, "document.querySelectorAll('.answer[aria-busy=false]').length === 3")
    alone, store, without = page.locator(".pane").all()
    assert "All of this text came from the language model" in alone.locator(".summary").inner_text()
    assert "tea" in store.locator(".bars").inner_text()
    assert "tea" not in without.locator(".bars").inner_text()

    page.goto(f"{server.address}/#optout?kind=document&value=external:tea&store=store")
    page.get_by_text("1 document would go.").wait_for()
    page.get_by_role("button", name="Measure").click()
    page.get_by_text("Measured on 44 tokens.").wait_for()
    page.locator("select[name=on]").select_option("own")
    page.get_by_label("Text to measure on").fill("Tea is made with hot water.")
    page.get_by_role("button", name="Measure").click()
    page.get_by_text("Measured on 27 tokens.").wait_for()
    with_them, without = (float(figure) for figure in page.locator(".priced b").all_inner_texts())
    assert with_them < without
    _erase(page)
    receipt = page.locator(".receipt").inner_text()
    assert "The signature fits every word of the receipt." in receipt
    assert "It speaks of the documents you chose." in receipt
    assert "Genuine" in receipt
    assert "not covered" in receipt

    with page.expect_download() as saved:
        page.get_by_role("button", name="Download the receipt").click()
    content = json.loads(saved.value.path().read_text())
    changed = server.place / "changed.json"
    changed.write_text(json.dumps({**content, "counts": {**content["counts"], "tokens": 1}}))
    page.get_by_label("Receipt file").set_input_files(changed)
    page.get_by_text("The signature does not fit.").wait_for()

    page.goto(link)
    page.get_by_text("of documents erased since").wait_for()
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".link a").wait_for()
    assert "tea" not in page.locator("aside .bars").inner_text()


def test_an_owner_sees_no_document_of_others(page: Any, server: Served) -> None:
    listed = server.client().get("/v1/silo/documents", params={"store": "store"}).json()["data"]
    other = next(item for item in listed if item["owner"] != "f")
    enter(page, server, "owner", "documents")
    page.locator("td a").first.wait_for()
    assert page.locator("td a").all_inner_texts() == ["fox"]
    assert "Operator" not in page.locator("nav").inner_text()
    assert "Playground" not in page.locator("nav").inner_text()
    page.get_by_label("Your text").fill("the licensee shall not sell")
    page.get_by_role("button", name="Look for it").click()
    page.get_by_text("No. None of the documents that you may see").wait_for()
    page.goto(f"{server.address}/#document?id={other['id']}")
    page.get_by_text("there is no such document").wait_for()
    page.goto(f"{server.address}/#optout?kind=owner&value={other['owner']}&store=store")
    page.get_by_text("no document is meant").wait_for()
    page.goto(f"{server.address}/#owner")
    page.get_by_text("1 document with").wait_for()


def test_a_key_that_sees_no_probabilities_gets_shares_by_sentence(page: Any, server: Served) -> None:
    enter(page, server, "reader")
    write(page, "The quick brown")
    page.get_by_text("sentence by sentence").wait_for()
    assert "fox" in page.locator("aside .bars").inner_text()


def test_switches_make_the_policy_that_the_answer_keeps(page: Any, server: Served) -> None:
    enter(page, server)
    write(page, "The quick brown")
    assert "fox" in page.locator("aside .bars").inner_text()
    page.get_by_text("What may be used", exact=True).click()
    page.get_by_role("switch", name="f", exact=True).uncheck()
    page.get_by_role("switch", name="restricted").uncheck()
    assert page.locator(".policy code").inner_text() == 'tier not in ["restricted"] and owner not in ["f"]'
    write(page, "The quick brown")
    shares = page.locator("aside .bars").inner_text()
    assert "dog" in shares and "fox" not in shares


def test_an_answer_uses_the_stores_that_are_switched_on(page: Any, server: Served) -> None:
    enter(page, server)
    page.goto(f"{server.address}/#play?prompt=The%20quick%20brown&model=both&tokens=24&off-store=store")
    _write_again(page)
    assert "fox" not in page.locator("aside .bars").inner_text()
    page.locator("details:has(.stores)").evaluate("(fold) => (fold.open = true)")
    page.get_by_role("switch", name="store", exact=True).check()
    page.get_by_role("switch", name="hostile", exact=True).uncheck()
    _write_again(page)
    assert "fox" in page.locator("aside .bars").inner_text()
    assert "off-store=hostile" in page.locator(".link a").get_attribute("href")
    page.get_by_role("switch", name="store", exact=True).uncheck()
    _write_again(page)
    assert "All of this text came from the language model" in page.locator(".summary").inner_text()


def _write_again(page: Any) -> None:
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".result .answer[aria-busy=false]").wait_for()
    page.locator(".link a").wait_for()


def test_a_document_says_where_it_was_used(page: Any, server: Served) -> None:
    enter(page, server)
    page.locator("details:has([name=ledger])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=ledger]").check()
    write(page, "The sea is wide and", tokens=12)
    page.locator("aside .share", has_text="sea").first.wait_for()
    listed = server.client().get("/v1/silo/documents", params={"store": "store", "owner": "s"}).json()["data"]
    page.goto(f"{server.address}/#document?id={listed[0]['id']}")
    page.get_by_text("In 1 answer, of which").wait_for()
    card = page.locator("section", has=page.get_by_role("heading", name="Where it was used"))
    assert card.locator("tbody tr").count() == 1


def test_an_operator_makes_a_key_that_is_shown_once_and_takes_it_away(page: Any, server: Served) -> None:
    enter(page, server, view="operator")
    form = page.locator(".new-key")
    form.get_by_label("Name").fill("for the sea")
    form.get_by_label("Role").select_option("owner")
    form.get_by_role("button", name="Make the key").click()
    form.get_by_text("the role owner and --owner belong together").wait_for()
    form.get_by_label("Owner", exact=False).last.fill("s")
    form.get_by_role("button", name="Make the key").click()
    secret = form.locator(".secret").inner_text()
    mine = {"authorization": f"Bearer {secret}"}
    assert server.client("", **mine).get("/v1/silo/me").json()["owner"] == "s"

    page.goto(f"{server.address}/#documents")
    page.goto(f"{server.address}/#operator")
    page.get_by_role("button", name="Revoke for the sea").click()
    assert secret not in page.content()
    page.get_by_role("button", name="Really revoke?").click()
    page.get_by_role("cell", name="revoked", exact=True).wait_for()
    assert page.get_by_role("button", name="Revoke for the sea").count() == 0
    assert server.client("", **mine).get("/v1/silo/me").status_code == 401


def test_the_corpus_view_says_what_was_left_out_and_why(page: Any, server: Served) -> None:
    masked = {"id": "masked letter", "text": "[**NAME**] [**NAME**] [**NAME**] said", "license": "MIT"}
    server.client().post("/v1/silo/documents", json={"store": "store", "documents": [masked]})
    enter(page, server, view="corpus")
    page.get_by_text("No text is there under two licences.").wait_for()
    end = time.monotonic() + WAIT_MS / 1000
    while not page.get_by_text("masked letter").count():
        assert time.monotonic() < end
        page.reload()
        page.locator(".bar").first.wait_for()
    page.get_by_text("most of it is masked").wait_for()
    page.get_by_label("Look at").select_option("corpus corpus")
    page.get_by_text("30 documents read:").wait_for()


def test_the_guard_shows_what_it_prevented(page: Any, server: Served) -> None:
    enter(page, server)
    page.locator("details:has([name=guard])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=guard]").fill("12")
    write(page, "The licensee shall not")
    page.get_by_text("It stepped in").wait_for()
    page.locator(".guarded").first.click()
    page.get_by_text("The guard kept out").wait_for()


def test_a_chat_has_its_shares_too(page: Any, server: Served) -> None:
    enter(page, server)
    page.locator("details:has([name=mode])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=mode]").select_option("chat")
    page.get_by_label("Ask a question").fill("Where is the fox?")
    page.locator("details:has([name=tokens])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=tokens]").fill("12")
    page.get_by_role("button", name="Write", exact=True).click()
    page.locator(".link a").wait_for()
    assert 0 < page.locator(".word").count() <= 12
    assert page.locator(".prompt").count() == 0


def test_a_document_comes_in_after_its_verdict_was_shown(page: Any, server: Served) -> None:
    enter(page, server, view="documents")
    form = page.locator("form:has(input[type=file])")
    form.get_by_label("Name").fill("oak")
    form.get_by_label("Licence as stated").fill("CC-BY-4.0")
    form.get_by_label("Or paste the text").fill("An oak grows slowly and stands for five hundred years.")
    form.get_by_role("button", name="Check the rights").click()
    form.get_by_text("“oak” would count as attribution licence.").wait_for()
    form.get_by_role("button", name="Store it").click()
    form.get_by_text("Stored: 1 document.").wait_for()
    page.get_by_label("Your text").fill("an OAK grows slowly")
    page.get_by_role("button", name="Look for it").click()
    page.get_by_text("Yes, in 1 document:").wait_for()


def test_a_wrong_key_is_told_so_and_not_kept(page: Any, server: Served) -> None:
    page.goto(server.address)
    page.get_by_label("Key").fill("silo-wrong")
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_text("does not know this key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_everything_works_with_the_keyboard_alone(page: Any, server: Served) -> None:
    page.goto(server.address)
    page.get_by_label("Key").wait_for()
    page.keyboard.type(server.keys["operator"])
    page.keyboard.press("Enter")
    page.get_by_label("Begin a text").wait_for()
    _tab_to(page, "textarea")
    page.keyboard.type("The quick brown")
    page.keyboard.press("Control+Enter")
    page.locator(".link a").wait_for()
    _tab_to(page, ".answer")
    page.keyboard.press("ArrowRight")
    page.locator("#popover:popover-open").wait_for()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('popover').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.locator("#popover:popover-open").wait_for(state="detached")
    assert page.evaluate("document.activeElement.className").startswith("word")
    _tab_to(page, ".share")
    assert "dimmed" in page.locator(".answer").get_attribute("class")
    page.goto(f"{server.address}/#documents")
    page.locator("td a").first.wait_for()
    _tab_to(page, "td a")
    page.keyboard.press("Enter")
    page.get_by_text("Why it counts as this").first.wait_for()


def _tab_to(page: Any, selector: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"no way to {selector} with the tab key")


def _stores(page: Any, store: str) -> None:
    for picker in page.locator("select[name=store]").all():
        picker.select_option(store)


def test_what_others_wrote_stays_text(page: Any, server: Served) -> None:
    assert len(PAYLOADS) >= 60
    enter(page, server, view="documents")
    _stores(page, "hostile")
    page.get_by_role("button", name="Search").click()
    until(page, "document.querySelectorAll('td a').length === 50")
    page.get_by_role("button", name="Show more").click()
    until(page, f"document.querySelectorAll('td a').length === {len(PAYLOADS)}")
    shown = "\n".join(page.locator("td").all_text_contents())
    for text in PAYLOADS:
        assert _visible(text) in shown
    assert not any(mark in shown for mark in "\u202e\u202d\u200b\u2066\ufeff\u2028")

    listed = server.client().get("/v1/silo/documents", params={"store": "hostile", "limit": 1000}).json()["data"]
    for item in listed[::6]:
        page.goto(f"{server.address}/#document?id={item['id']}&store=hostile")
        page.get_by_text("What may be done with it").first.wait_for()
        until(page, "(name) => document.querySelector('h1')?.textContent === name", _visible(item["external_id"]))
    page.goto(f"{server.address}/#corpus")
    page.locator(".bar").first.wait_for()
    page.get_by_label("Look at").select_option("store hostile")
    until(page, "document.querySelector('main')?.textContent.includes('__executed')")


def test_hostile_text_in_an_answer_stays_text(page: Any, server: Served) -> None:
    enter(page, server)
    page.locator("details:has([name=tokens])").evaluate("(fold) => (fold.open = true)")
    page.locator("[name=model]").select_option("hostile")
    until(page, "document.querySelector('.columns')?.textContent.includes('onerror')")
    for start in ("Payload 0: <scr", "Payload 10: <img", "Payload 16: <svg", f"Payload {len(PAYLOADS) - 12}: invoi"):
        page.goto(f"{server.address}/#play?prompt={start.replace(' ', '%20')}&model=hostile&tokens=40")
        page.get_by_role("button", name="Write", exact=True).click()
        page.locator(".link a").wait_for()
        page.locator(".word").nth(3).hover()
        page.locator("#popover .credits").wait_for()
    assert "⟦U+202E⟧" in page.locator("main").inner_text()


def _visible(text: str) -> str:
    """As the page shows it: characters that have no shape by their numbers."""
    shapeless = ("Cc", "Cf", "Zl", "Zp")
    return "".join(
        f"⟦U+{ord(mark):04X}⟧" if unicodedata.category(mark) in shapeless and mark not in "\t\n" else mark
        for mark in text
    )


@pytest.mark.parametrize(("theme", "views"), [("light", VIEWS), ("dark", VIEWS[-1:])])
def test_no_view_has_a_barrier_that_axe_knows(browser: Any, server: Served, theme: str, views: tuple[str, ...]) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    context = browser.new_context(color_scheme=theme, bypass_csp=True, viewport={"width": 1200, "height": 800})
    page = context.new_page()
    enter(page, server)
    write(page, "The quick brown")
    page.locator(".word").nth(3).click()
    found = _violations(axe, page)
    for view in views:
        page.goto(f"{server.address}/#{view}")
        page.locator("nav a[aria-current]").wait_for()
        page.wait_for_timeout(700)
        found += _violations(axe, page)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{server.address}/#documents")
    page.locator("td a").first.click()
    page.get_by_text("Why it counts as this").first.wait_for()
    found += _violations(axe, page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()
    assert found == []


def _violations(axe: Any, page: Any) -> list[str]:
    return [
        f"{page.url.rpartition('#')[2]}: {item['id']} {item['nodes'][0]['html'][:200]}"
        for item in axe.run(page).response["violations"]
    ]


def test_two_thousand_words_come_in_smoothly(browser: Any, page: Any, server: Served) -> None:
    """The stream arrives as fast as the network brings it, which is faster than any model writes."""
    enter(page, server)
    page.route("**/v1/completions", lambda route: route.fulfill(body=_long_stream(), content_type="text/event-stream"))
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    write(page, "Once")
    until(page, "document.querySelectorAll('.word').length === 2000")
    tasks = _main_thread_tasks(json.loads(browser.stop_tracing())["traceEvents"])
    processor, wall = ([item[kind] / 1000 for item in tasks if kind in item] for kind in ("tdur", "dur"))
    over = sum(milliseconds > LONGEST_FRAME_MS for milliseconds in wall)
    spent = f"{sum(processor):.0f} ms of processor time, the longest {max(processor):.1f} ms"
    _LOG.info("%d tasks: %s; by the clock %.1f ms, %d too long", len(tasks), spent, max(wall), over)
    assert 0 < max(processor) <= LONGEST_FRAME_MS


def _main_thread_tasks(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page's main thread did, piece by piece: no frame is drawn while a piece is under way.

    `dur` is by the clock; `tdur` is processor time, which does not depend on how busy the machine is.
    """
    threads = {
        (item["pid"], item["tid"])
        for item in trace
        if item["name"] == "thread_name" and item["args"]["name"] == "CrRendererMain"
    }
    return [item for item in trace if item["name"].endswith("RunTask") and (item["pid"], item["tid"]) in threads]


def _long_stream() -> str:
    """2,000 tokens of 40 documents."""
    events = []
    for at in range(2000):
        word = " word" if at % 15 else "\n"
        silo = {"lm": 0.3, "docs": [[at // 7 % 40, 0.5], [at % 40, 0.2]]}
        lists = {
            "tokens": [word],
            "token_logprobs": [-0.5],
            "top_logprobs": [{word: -0.5, " other": -1.5}],
            "silo": [silo],
        }
        events.append(
            {"id": "cmpl-1", "choices": [{"index": 0, "text": word, "logprobs": lists, "finish_reason": None}]}
        )
    facts = [
        {
            "document": f"{at:032x}",
            "external_id": f"document {at}",
            "owner": f"owner {at % 9}",
            "license": "MIT",
            "tier": "sw",
        }
        for at in range(40)
    ]
    last = {"index": 0, "text": "", "finish_reason": "length", "silo": {"documents": facts, "spans": [], "notices": []}}
    events.append({"id": "cmpl-1", "choices": [last]})
    return "".join(f"data: {json.dumps(item)}\n\n" for item in events) + "data: [DONE]\n\n"
