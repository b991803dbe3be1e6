"""Things to hand to people: a generated text, an answer, a score or tables as one HTML page that needs nothing else.

Tokens have the colour of the document, or of the owner, that contributed most; what the language model wrote by itself
is grey. Hovering over a token shows its shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from silo.page import PALETTE, Html, bars, element, items, join, named, table, write_page

if TYPE_CHECKING:
    from silo.inference.answer import Answer
    from silo.inference.ask.reply import Citation, Reply
    from silo.inference.credit import Credit
    from silo.inference.generate import Step

By = Literal["document", "owner"]

Table = tuple[str, Sequence[str], Sequence[Sequence[Any]]]
"""Title, columns and rows."""

_LISTED = 10
_HOVERED = 5
_MOST_TOKENS = 5_000
"""Tokens of a scored text that a page shows: a browser takes no more with ease."""


def write_answer_page(answer: Answer, path: Path) -> None:
    """`silo generate --html`."""
    colours = _colours(answer, "document")
    parts = [shaded_text(answer, colours, "document"), shares_table(answer, colours, "document")]
    facts: list[list[object]] = [
        ["ended by", answer.finish_reason],
        ["policy", answer.policy or "none"],
        ["tokens", len(answer.tokens)],
    ]
    write_page(path, "silo: generated text", element("h1", "Generated text"), _LEGEND, *parts, table(("", ""), facts))


_LEGEND = element(
    "p",
    "Bold is the prompt, grey came from the language model alone, a colour is the document that contributed most. "
    "Hover over a word for shares.",
    class_="lead",
)


def write_reply_page(reply: Reply, path: Path) -> None:
    """`silo ask --html`."""
    parts = [element("h1", reply.question)]
    if not reply.found:
        parts.append(element("p", reply.text, class_="answer"))
        write_page(path, f"silo: {reply.question}", *parts)
        return
    colours = {item.id: PALETTE[at % len(PALETTE)] for at, item in enumerate(reply.citations)}
    if reply.answer:
        colours = {**_colours(reply.answer, "document", after=len(colours)), **colours}
        parts += [shaded_text(reply.answer, colours, "document")]
    else:
        parts += [element("p", reply.text, class_="answer"), element("p", _QUOTED, class_="small")]
    parts += [element("h2", "Where it stands"), *(_quotation(item, colours[item.id]) for item in reply.citations)]
    if reply.answer:
        parts += [element("h2", "Who contributed"), shares_table(reply.answer, colours, "document")]
    else:
        parts.append(_owed(reply.notices))
    write_page(path, f"silo: {reply.question}", *parts)


_QUOTED = "These are the document's own words: the model said nothing surer that rests on what it read."


def _quotation(item: Citation, colour: str) -> Html:
    place = f"{item.document}, {item.place}" if item.place else item.document
    about = [item.owner, item.licence, f"characters {item.start:,} to {item.end:,}"]
    quote = " ".join(item.quote.split()) or "may not be quoted"
    return element(
        "blockquote",
        element("div", quote),
        element("div", named(place, colour), " · ", " · ".join(filter(None, about)), class_="small"),
        style=f"border-color:{colour}",
    )


def write_score_page(title: str, figures: Mapping[str, Any], tokens: Iterable[Mapping[str, Any]], path: Path) -> None:
    """`silo score --html`: figures, and the text with what each token cost and what of it came from the stores."""
    shown = list(zip(range(_MOST_TOKENS), tokens, strict=False))
    text = element("pre", *(_scored_token(token) for _, token in shown), class_="text")
    lead = (
        "Green came from the stores, the darker the more; underlined words were hard to predict (below one in a "
        f"thousand). Hover over a word for its numbers. The first {len(shown):,} tokens."
    )
    facts = table(("what", "value"), [[name, _plain(value)] for name, value in figures.items()])
    write_page(path, f"silo: {title}", element("h1", title), facts, element("p", lead, class_="lead"), text)


def _plain(value: Any) -> Any:
    return f"{value:,.4g}" if isinstance(value, float) else value


def _scored_token(token: Mapping[str, Any]) -> Html:
    style = f"background:rgba(47,158,110,{0.6 * token['store_share']:.2f})"
    style += ";text-decoration:underline dotted #b3261e" if token["logprob"] < -6.9 else ""
    title = f"log-probability {token['logprob']:.2f}\nstores {token['store_share']:.0%}"
    return element("span", token["text"], title=title, style=style)


def write_tables_page(
    title: str, tables: Iterable[Table], path: Path, figures: Mapping[str, float] | None = None
) -> None:
    """`silo corpus stats --html`, and whatever else is tables."""
    made = (join([element("h2", name), table(columns, rows)]) for name, columns, rows in tables)
    chart = [bars(figures)] if figures else []
    write_page(path, f"silo: {title}", element("h1", title), *chart, *made)


def _colours(answer: Answer, by: By, *, after: int = 0) -> dict[str, str]:
    return {name: PALETTE[(after + at) % len(PALETTE)] for at, (name, _) in enumerate(answer.shares(by))}


def owner_colours(answer: Answer) -> dict[str, str]:
    """A colour for each owner."""
    return _colours(answer, "owner")


def shaded_text(answer: Answer, colours: Mapping[str, str], by: By) -> Html:
    """The prompt, and every token in the colour of whom it owes most."""
    tokens = (_token(step, colours, by) for step in answer.steps)
    return element("pre", element("span", answer.prompt, class_="prompt"), *tokens, class_="text")


def _token(step: Step, colours: Mapping[str, str], by: By) -> Html:
    title = "\n".join([f"language model {step.lm_share:.0%}", *map(_credit_line, step.credits[:_HOVERED])])
    best = step.main_credit
    colour = colours.get(best.document if by == "document" else best.owner) if best else None
    if colour is None:
        return element("span", step.text, class_="lm", title=title)
    return element("span", step.text, style=f"background:{colour}22;color:{colour}", title=title)


def _credit_line(item: Credit) -> str:
    share = "read" if item.context else f"{item.share:.0%}"
    return f"{share} {item.owner}: {item.external_id} ({item.license})"


def shares_table(answer: Answer, colours: Mapping[str, str], by: By) -> Html:
    """The legend: who has which share under which licence, the licences together, and what is owed."""
    rows = _owner_rows(answer, colours) if by == "owner" else _document_rows(answer, colours)
    columns = ("owner", "share") if by == "owner" else ("document", "owner", "licence", "share")
    alone = ["the language model", *[""] * (len(columns) - 2), f"{answer.lm_share:.1%}"]
    licences = [[name, f"{share:.1%}"] for name, share in answer.shares("license")[:_LISTED]]
    return join([table(columns, [alone, *rows]), table(("licence", "share"), licences), _owed(answer.notices)])


def _owner_rows(answer: Answer, colours: Mapping[str, str]) -> Iterator[list[object]]:
    for owner, share in answer.shares("owner")[:_LISTED]:
        yield [named(owner or "(no owner named)", colours[owner]), f"{share:.1%}"]


def _document_rows(answer: Answer, colours: Mapping[str, str]) -> Iterator[list[object]]:
    held = [item for item in answer.documents if not item.context]
    for item in held[:_LISTED]:
        name = named(item.external_id or item.document, colours.get(item.document, "#777"))
        yield [name, item.owner, item.license, f"{item.share / max(1, len(answer.tokens)):.1%}"]
    for item in answer.documents:
        if item.context:
            yield [f"{item.external_id or item.document} (read)", item.owner, item.license, ""]


def _owed(notices: Sequence[str]) -> Html:
    return join([element("p", "What is owed for it:"), items(notices)]) if notices else Html()
