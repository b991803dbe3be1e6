"""What the licences of documents ask of those who use them, as lines to be shown."""

from __future__ import annotations

from collections.abc import Iterable

from silo.records import Document, Duty

_DUTIES = {
    Duty.attribution: "name {owner} as the author of {title}",
    Duty.notice: "include the copyright and licence notice of {title}",
    Duty.share_alike: "pass on what builds on {title} under the same licence",
    Duty.non_commercial: "make no commercial use of {title}",
    Duty.no_derivatives: "publish no changed version of {title}",
    Duty.payment: "{title} asks for payment",
}


def notice_lines(documents: Iterable[Document]) -> Iterable[str]:
    """What the licences of some documents ask for; nothing for those that ask for nothing."""
    for document in documents:
        owner, title = document.owner or document.source, document.url or document.external_id
        asked = [_DUTIES[duty].format(owner=owner, title=title) for duty in Duty if duty in document.duties]
        if asked:
            yield f"{document.license}: {'; '.join(asked)}"
