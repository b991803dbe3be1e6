"""Generated text on a terminal: every document has a colour, what the language model wrote by itself has none."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from silo.cli import show
from silo.inference.answer import Answer
from silo.inference.ask.reply import Reply
from silo.inference.generate import Step

_PALETTE = ("green", "magenta", "cyan", "yellow", "blue", "red", "bright_green", "bright_magenta", "bright_cyan")
_KEPT = "\n\t"
_SHOWN = 10
_LEAST = 0.001
"""A document gets a row of its own if its share is at least this, and if it is among the first few."""


class Painter:
    """Prints tokens as they come, each in the colour of the document that contributed most to it."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._colours: dict[str, str] = {}

    def prompt(self, text: str) -> None:
        """The beginning, which nobody is credited for."""
        self._console.print(Text(show.visible(text, keep=_KEPT), style="bold"), end="")

    def step(self, step: Step) -> None:
        """One token."""
        self._console.print(Text(show.visible(step.text, keep=_KEPT), style=self._style(step)), end="")
        sys.stdout.flush()

    def _style(self, step: Step) -> str:
        return self.colour(step.main_credit.document) if step.main_credit else "dim"

    def colour(self, document: str) -> str:
        """The colour of a document."""
        return self._colours.setdefault(document, _PALETTE[len(self._colours) % len(_PALETTE)])

    def show(self, answer: Answer) -> None:
        """A finished answer."""
        self.prompt(answer.prompt)
        for step in answer.steps:
            self.step(step)
        self.summary(answer)

    def reply(self, reply: Reply) -> None:
        """What follows the tokens of an answer: its sources with the sentences it rests on, shares and notices."""
        if reply.answer is None:
            self._console.print(Text(show.visible(reply.text)), end="")
        self._console.print("\n" if reply.found else "")
        for item in reply.citations:
            where = f"{item.document}, {item.place}" if item.place else item.document
            quote = f': "{" ".join(item.quote.split())}"' if item.quote else ""
            line = Text(show.visible(where), style=self.colour(item.id)).append(show.visible(quote), style="default")
            self._console.print(line.append(show.visible(f" ({item.licence})"), style="dim"))
        if reply.found:
            shares = [("language model", reply.lm_share), *list(reply.shares.items())[:_SHOWN]]
            shown = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= _LEAST)
            self._console.print(Text(show.visible(f"shares: {shown}"), style="dim"))
        for notice in reply.notices:
            self._console.print(Text(show.visible(f"- {notice}")))

    def summary(self, answer: Answer) -> None:
        """Who contributed how much, and what is owed for it."""
        self._console.print("\n")
        rows = [["the language model", "", "", f"{answer.lm_share:.1%}"]]
        held = [(item, item.share / len(answer.tokens)) for item in answer.documents if not item.context]
        named = [pair for pair in held[:_SHOWN] if pair[1] >= _LEAST]
        rows += [[item.external_id or item.document, item.owner, item.license, f"{share:.1%}"] for item, share in named]
        rest = sum(share for _, share in held[len(named) :])
        if rest:
            rows.append([f"{len(held) - len(named)} more documents", "", "", f"{rest:.1%}"])
        rows += [
            [f"{item.external_id or item.document} (in context)", item.owner, item.license, ""]
            for item in answer.documents
            if item.context
        ]
        show.table(f"ended by {answer.finish_reason}", ("document", "owner", "licence", "share"), rows)
        for notice in answer.notices:
            self._console.print(Text(show.visible(f"- {notice}")))
        near = [
            [step.text, item.left, item.continuation, item.document]
            for step in answer.tokens
            for item in step.neighbours
        ]
        if near:
            show.table("the nearest places", ("token", "what stands before", "what follows", "document"), near)
