"""What several verbs of `silo store` share: the documents that options name, and what is said of an erasure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from silo.cli import show
from silo.errors import SiloError

if TYPE_CHECKING:
    from silo.store.erasure.erase import Erased
    from silo.store.selector import Selector
    from silo.store.store import Store


def selector_of(arguments: argparse.Namespace) -> Selector:
    """The documents that options name."""
    from silo.store.selector import Selector

    return Selector(**{name: getattr(arguments, name) for name in show.SELECTORS})


def nothing_selected(store: Store, selector: Selector) -> SiloError:
    """No document is meant: says by what, and offers names that are near."""
    with store.reading() as view:
        return selector.matches_nothing(store.root, view.buckets)


def checks_of(erasures: Sequence[Erased]) -> dict[str, list[str]]:
    """The checks that failed or were not made, in any of some erasures."""
    return {
        "failed_checks": sorted({name for item in erasures for name in item.failed_checks}),
        "not_checked": sorted({name for item in erasures for name in item.unmade_checks}),
    }


def status_of(facts: Mapping[str, Any]) -> int:
    """Say what was not proven of documents that left; gives the exit status."""
    return show.complain_of_checks("the documents are out, but", facts["failed_checks"], facts["not_checked"])


def remind_of_salts(salts: Mapping[str, str], file: str | None) -> None:
    """Say that salts are kept nowhere, if nobody has them."""
    if salts and not file:
        show.say("the owner's salts were not written: use --salts FILE or --json to hand them out")
