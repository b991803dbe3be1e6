"""The demo's report: one HTML page that needs nothing else, with hover on every generated token."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from silo.inference.answer import Answer
from silo.inference.generate import Step
from silo.journeys.demo import Findings

_PALETTE = (
    "#2f9e6e",
    "#3b6fb6",
    "#c58a2b",
    "#a347ba",
    "#c2483d",
    "#1d8a99",
    "#7a6f1d",
    "#6b5bd2",
    "#b3446c",
    "#4d7c0f",
)

_STYLE = """
body{font:16px/1.55 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1c1c1c;background:#fff}
h1{font-size:1.9rem;margin-bottom:.2rem}h2{margin-top:2.4rem;border-bottom:1px solid #ddd;padding-bottom:.2rem}
table{border-collapse:collapse;margin:.8rem 0}td,th{padding:.25rem .8rem;text-align:left;border-bottom:1px solid #eee}
td.n{text-align:right;font-variant-numeric:tabular-nums}.lead{color:#555}
pre.text{white-space:pre-wrap;background:#fafafa;border:1px solid #e4e4e4;border-radius:6px;padding:1rem}
pre.text span{border-radius:3px;cursor:help}pre.text .lm{color:#777}pre.text .prompt{font-weight:600}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.good{color:#1d7a46;font-weight:600}.bad{color:#b3261e;font-weight:600}code{background:#f4f4f4;padding:.1em .3em}
"""


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
    body = "\n".join(parts)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>silo demo</title><style>{_STYLE}</style>{body}</html>"
    )
    path.write_text(page, encoding="utf-8")


def _head(facts: dict[str, Any]) -> str:
    total = sum(facts["seconds"].values())
    return (
        "<h1>silo, on this machine</h1><p class=lead>Code that anyone may train on became a small language model. "
        "Code under other terms went into a store that is only read while the model answers. Every token names the "
        f"documents behind it, and an owner can leave. Made in {total:.0f} seconds from the Python packages here.</p>"
    )


def _table(rows: list[list[Any]], header: list[str]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        return f"<td class=n>{shown}</td>"
    return f"<td>{escape(str(value))}</td>"


def _corpus(corpus: dict[str, Any]) -> str:
    named = {"pd": "public domain: trains", "sw": "permissive: trains", "by": "attribution: trains if asked"}
    rows = [
        [tier, named.get(tier, "restricted: store only"), count, ", ".join(list(corpus["licences"][tier])[:3])]
        for tier, count in corpus["characters"].items()
    ]
    return "<h2>1. Licences decide</h2>" + _table(rows, ["tier", "use", "characters", "largest licences"])


def _model(facts: dict[str, Any]) -> str:
    losses = facts["models"]["demo"]["curve"]["training"]
    return (
        "<h2>2. A model of permitted code only</h2>"
        + _curve(losses)
        + f"<p>{facts['proof']['documents_the_model_saw']:,} documents shaped it; "
        + f"{facts['proof']['documents_it_should_not_have_seen']} of them should not have.</p>"
    )


def _curve(losses: list[list[float]]) -> str:
    """Training loss as a line."""
    width, height = 640, 180
    top, bottom = max(loss for _, loss in losses), min(loss for _, loss in losses)
    last = losses[-1][0]
    points = " ".join(
        f"{60 + (width - 80) * tokens / last:.1f},{15 + (height - 45) * (top - loss) / max(top - bottom, 1e-9):.1f}"
        for tokens, loss in losses
    )
    return (
        f"<svg viewBox='0 0 {width} {height}' width={width} role=img aria-label='training loss'>"
        f"<polyline points='{points}' fill=none stroke=#3b6fb6 stroke-width=2 />"
        f"<text x=5 y=20 font-size=12>{top:.1f}</text><text x=5 y={height - 30} font-size=12>{bottom:.1f}</text>"
        f"<text x=60 y={height - 8} font-size=12>training loss over {last:,.0f} tokens</text></svg>"
    )


def _methods(facts: dict[str, Any]) -> str:
    store = facts["store"]
    return (
        "<h2>3. What the store is worth</h2>"
        f"<p>{store['documents']:,} restricted documents ({store['tokens']:,} tokens) of {len(store['owners'])} owners "
        f"in the store; perplexity on {facts['tokens_scored']:,} tokens of restricted files in neither (lower is "
        f"better), settings from other held-out files.</p>{_bars(facts['methods'])}"
    )


def _bars(values: dict[str, float]) -> str:
    top = max(values.values())
    rows = []
    for at, (name, value) in enumerate(values.items()):
        size, y = 380 * value / top, 8 + 30 * at
        rows.append(
            f"<text x=170 y={y + 15} font-size=13 text-anchor=end>{escape(name)}</text>"
            f"<rect x=180 y={y} width={size:.0f} height=20 rx=3 fill={_PALETTE[at % len(_PALETTE)]} />"
            f"<text x={188 + size:.0f} y={y + 15} font-size=13>{value:,.1f}</text>"
        )
    return f"<svg viewBox='0 0 660 {16 + 30 * len(values)}' width=660 role=img>{''.join(rows)}</svg>"


def _generation(findings: Findings) -> str:
    answer = findings.answers["before"]
    colours = _colours(answer)
    return (
        "<h2>4. A continuation, and whom it is owed to</h2><p>Bold is the prompt, grey came from the language model "
        "alone, a colour is the owner who contributed most. Hover for shares.</p>"
        + _coloured(answer, colours)
        + _shares(answer, colours)
    )


def _colours(answer: Answer) -> dict[str, str]:
    return {owner: _PALETTE[at % len(_PALETTE)] for at, (owner, _) in enumerate(answer.shares("owner"))}


def _coloured(answer: Answer, colours: dict[str, str]) -> str:
    tokens = "".join(_token(step, colours) for step in answer.steps)
    return f"<pre class=text><span class=prompt>{escape(answer.prompt)}</span>{tokens}</pre>"


def _token(step: Step, colours: dict[str, str]) -> str:
    lines = [f"language model {step.lm_share:.0%}"]
    lines += [f"{item.share:.0%} {item.owner}: {item.external_id} ({item.license})" for item in step.credits[:5]]
    title = escape("\n".join(lines), quote=True)
    if step.main_credit is None:
        return f"<span class=lm title='{title}'>{escape(step.text)}</span>"
    colour = colours.get(step.main_credit.owner, "#777")
    return f"<span style='background:{colour}22;color:{colour}' title='{title}'>{escape(step.text)}</span>"


def _shares(answer: Answer, colours: dict[str, str]) -> str:
    rows = [f"<tr><td>the language model</td><td class=n>{answer.lm_share:.1%}</td></tr>"]
    for owner, share in answer.shares("owner")[:10]:
        mark = f"<i class=key style='background:{colours[owner]}'></i>"
        rows.append(f"<tr><td>{mark}{escape(owner)}</td><td class=n>{share:.1%}</td></tr>")
    licences = _table([[name, f"{share:.1%}"] for name, share in answer.shares("license")[:8]], ["licence", "share"])
    notices = "".join(f"<li>{escape(line)}</li>" for line in answer.notices)
    owed = f"<p>What is owed for it:</p><ul>{notices}</ul>" if notices else ""
    return f"<table><tr><th>owner</th><th>share</th></tr>{''.join(rows)}</table>{licences}{owed}"


def _opt_out(findings: Findings) -> str:
    facts = findings.facts["opt_out"]
    values = facts["perplexity_on_their_files"]
    bars = {"model alone": values["lm"], "with the store": values["before"], "after opting out": values["after"]}
    answer = findings.answers["after"]
    return (
        f"<h2>5. {escape(facts['owner'])} opts out</h2><p>{facts['documents']:,} documents left: no request could find "
        f"them after {facts['accepted_ms']:.0f} ms, every byte was gone after {facts['done_ms'] / 1000:.1f} s. "
        f"Perplexity on held-out files of this owner:</p>{_bars(bars)}<p>The same prompt again:</p>"
        f"{_coloured(answer, _colours(answer))}"
    )


def _proof(proof: dict[str, Any], opt_out: dict[str, Any]) -> str:
    fine = not proof["failed_checks"] and not proof["store_problems"]
    verdict = "<span class=good>verifies</span>" if fine else "<span class=bad>does not verify</span>"
    checks = _table([[name, str(value)] for name, value in proof["receipt_checks"].items()], ["check", "result"])
    left = "".join(f"<li>{escape(line)}</li>" for line in proof["not_covered"])
    return (
        f"<h2>6. Proof</h2><p>The receipt <code>{escape(proof['receipt'])}</code> {verdict}; the store's digest is now "
        f"<code>{escape(opt_out['digest'][:16])}</code>, that of a store which never held these documents.</p>{checks}"
        f"<p>What a receipt does not cover:</p><ul>{left}</ul>"
    )


def _next(owner: str) -> str:
    return (
        "<h2>7. What to try next</h2><ul><li><code>silo quickstart FOLDER --model MODEL</code>: your own documents</li>"
        "<li><code>silo generate --model silo-demo/models/demo --store silo-demo/stores/demo --settings demo --home "
        "silo-demo 'import os'</code></li><li><code>silo generate ... --policy 'license == \"MPL-2.0\"'</code></li>"
        f"<li><code>silo store erase silo-demo/stores/demo --owner {escape(owner)} --dry-run</code></li></ul>"
    )
