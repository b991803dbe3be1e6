"""The demo's report: one HTML page that needs nothing else, with hover on every generated token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from silo.journeys.demo import Findings
from silo.journeys.pages import owner_colours, shaded_text, shares_table
from silo.page import Html, bars, element, items, join, table, write_page


def write_report(findings: Findings, path: Path) -> None:
    """Write the page."""
    facts = findings.facts
    parts = [
        _head(facts),
        _corpus(facts["corpus"]),
        _model(facts),
        _methods(facts),
        _generation(findings),
        _opt_out(findings),
        _proof(facts["proof"], facts["opt_out"]),
        _next(next((name for name in facts["store"]["owners"] if name != facts["opt_out"]["owner"]), "NAME")),
    ]
    write_page(path, "silo demo", *parts)


def _head(facts: dict[str, Any]) -> Html:
    total = sum(facts["seconds"].values())
    lead = (
        "Code that anyone may train on became a small language model. Code under other terms went into a store that is "
        "only read while the model answers. Every token names the documents behind it, and an owner can leave. Made in "
        f"{total:.0f} seconds from the Python packages here."
    )
    return join([element("h1", "silo, on this machine"), element("p", lead, class_="lead")])


def _corpus(corpus: dict[str, Any]) -> Html:
    uses = {"pd": "public domain: trains", "sw": "permissive: trains", "by": "attribution: trains if asked"}
    rows = [
        [tier, uses.get(tier, "restricted: store only"), count, ", ".join(list(corpus["licences"][tier])[:3])]
        for tier, count in corpus["characters"].items()
    ]
    return join([element("h2", "1. Licences decide"), table(["tier", "use", "characters", "largest licences"], rows)])


def _model(facts: dict[str, Any]) -> Html:
    seen = (
        f"{facts['proof']['documents_the_model_saw']:,} documents shaped it; "
        f"{facts['proof']['documents_it_should_not_have_seen']} of them should not have."
    )
    curve = _curve(facts["models"]["demo"]["curve"]["training"])
    return join([element("h2", "2. A model of permitted code only"), curve, element("p", seen)])


def _curve(losses: list[list[float]]) -> Html:
    """Training loss as a line."""
    width, height = 640, 180
    top, bottom = max(loss for _, loss in losses), min(loss for _, loss in losses)
    last = losses[-1][0]
    points = " ".join(
        f"{60 + (width - 80) * tokens / last:.1f},{15 + (height - 45) * (top - loss) / max(top - bottom, 1e-9):.1f}"
        for tokens, loss in losses
    )
    size = {"font-size": "12"}
    return element(
        "svg",
        element("polyline", points=points, fill="none", stroke="#3b6fb6", **{"stroke-width": "2"}),
        element("text", f"{top:.1f}", x="5", y="20", **size),
        element("text", f"{bottom:.1f}", x="5", y=str(height - 30), **size),
        element("text", f"training loss over {last:,.0f} tokens", x="60", y=str(height - 8), **size),
        viewBox=f"0 0 {width} {height}",
        width=str(width),
        role="img",
    )


def _methods(facts: dict[str, Any]) -> Html:
    store = facts["store"]
    text = (
        f"{store['documents']:,} restricted documents ({store['tokens']:,} tokens) of {len(store['owners'])} owners "
        f"in the store; perplexity on {facts['tokens_scored']:,} tokens of restricted files in neither (lower is "
        "better), settings from other held-out files."
    )
    return join([element("h2", "3. What the store is worth"), element("p", text), bars(facts["methods"])])


def _generation(findings: Findings) -> Html:
    answer = findings.answers["before"]
    colours = owner_colours(answer)
    lead = (
        "Bold is the prompt, grey came from the language model alone, a colour is the owner who contributed most. "
        "Hover for shares."
    )
    return join(
        [
            element("h2", "4. A continuation, and whom it is owed to"),
            element("p", lead),
            shaded_text(answer, colours, "owner"),
            shares_table(answer, colours, "owner"),
        ]
    )


def _opt_out(findings: Findings) -> Html:
    facts = findings.facts["opt_out"]
    values = facts["perplexity_on_their_files"]
    answer = findings.answers["after"]
    left = (
        f"{facts['documents']:,} documents left: no request could find them after {facts['accepted_ms']:.0f} ms, every "
        f"byte was gone after {facts['done_ms'] / 1000:.1f} s. Perplexity on held-out files of this owner:"
    )
    return join(
        [
            element("h2", f"5. {facts['owner']} opts out"),
            element("p", left),
            bars(
                {"model alone": values["lm"], "with the store": values["before"], "after opting out": values["after"]}
            ),
            element("p", "The same prompt again:"),
            shaded_text(answer, owner_colours(answer), "owner"),
        ]
    )


def _proof(proof: dict[str, Any], opt_out: dict[str, Any]) -> Html:
    fine = not proof["failed_checks"] and not proof["store_problems"]
    verdict = element("span", "verifies" if fine else "does not verify", class_="good" if fine else "bad")
    digest = element("code", opt_out["digest"][:16])
    receipt = element("code", proof["receipt"])
    said = ["The receipt ", receipt, " ", verdict, "; the store's digest is now ", digest]
    return join(
        [
            element("h2", "6. Proof"),
            element("p", *said, ", that of a store which never held these documents."),
            table(["check", "result"], [[name, str(value)] for name, value in proof["receipt_checks"].items()]),
            element("p", "What a receipt does not cover:"),
            items(proof["not_covered"]),
        ]
    )


def _next(owner: str) -> Html:
    generate = "silo generate --model silo-demo/models/demo --store silo-demo/stores/demo --settings demo"
    commands = [
        join([element("code", "silo quickstart FOLDER --model MODEL"), ": your own documents"]),
        join([element("code", "make demo-chat DOCS=FOLDER"), ": ask them, with a model that speaks English"]),
        element("code", "silo serve --model silo-demo/models/demo --store silo-demo/stores/demo"),
        element("code", f"{generate} --home silo-demo 'import os'"),
        element("code", "silo generate ... --policy 'license == \"MPL-2.0\"'"),
        element("code", f"silo store erase silo-demo/stores/demo --owner {owner} --dry-run"),
    ]
    return join([element("h2", "7. What to try next"), items(commands)])
