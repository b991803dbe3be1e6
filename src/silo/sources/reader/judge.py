"""Promises a verdict on every candidate: `corpus build` and `store add` judge a record in the same way."""

from __future__ import annotations

from silo.records import Candidate, Document, Right, document_id
from silo.rights import read_header, resolve
from silo.text.normalise import normalise


def judge(candidate: Candidate, deny: tuple[Right, ...] = ()) -> Document:
    """A candidate with the verdict on all evidence: what was said about it, and what its own head says."""
    text = normalise(candidate.text)
    evidence = (*candidate.evidence, *read_header(text, where="text"))
    verdict = resolve(evidence, stated_tier=candidate.stated_tier, deny=deny)
    return Document(
        id=document_id(candidate.source, candidate.external_id),
        text=text,
        source=candidate.source,
        external_id=candidate.external_id,
        owner=candidate.owner,
        domain=candidate.domain,
        license=verdict.spdx,
        tier=verdict.tier,
        rights=verdict.rights,
        duties=verdict.duties,
        evidence=verdict.evidence,
        conflicts=verdict.conflicts,
        url=candidate.url,
        meta=candidate.meta,
    )
