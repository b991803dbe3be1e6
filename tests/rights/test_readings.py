"""How licence strings are read: the paper's conservative reading, spelling by spelling."""

from __future__ import annotations

import time

import pytest

from silo.records import Duty, Right, Tier
from silo.rights import assess, classify

PD, SW, BY, RESTRICTED = Tier.pd, Tier.sw, Tier.by, Tier.restricted

TIERS: list[tuple[str, Tier]] = [
    ("CC0-1.0 (arXiv metadata)", PD),
    ("Public domain in the USA (Gutendex copyright=false)", PD),
    ("CC0-1.0 / public domain (government edict)", PD),
    ("public domain (US government work)", PD),
    ("public domain (US government work, 17 USC 105)", PD),
    ("public domain / CC0-1.0", PD),
    ("CC0-1.0 (Standard Ebooks dedication; text public domain in the USA)", PD),
    ("CC0", PD),
    ("CC0 1.0 Universal", PD),
    ("Unlicense", PD),
    ("PDDL-1.0", PD),
    ("License :: Public Domain", PD),
    ("http://creativecommons.org/publicdomain/zero/1.0/", PD),
    ("https://creativecommons.org/publicdomain/mark/1.0/deed.de", PD),
    ("CC-BY-4.0 (data/LICENSE-data.txt); logs themselves public domain per Ubuntu IRC policy", BY),
    ("CC-BY (stated in text)", BY),
    ("CC-BY-3", BY),
    ("cc-by-sa-3.0", BY),
    ("Creative Commons Attribution 4.0 International", BY),
    ("Creative Commons Attribution-ShareAlike 3.0 Unported License", BY),
    ("//creativecommons.org/licenses/by/3.0/igo/legalcode", BY),
    ("Apache Software License", SW),
    ("Apache 2.0", SW),
    ("Apache 2.0 License", SW),
    ("Apache License 2.0", SW),
    ("Apache License, Version 2.0", SW),
    ("BSD", SW),
    ("BSD License", SW),
    ('BSD 3-Clause "New" or "Revised" License', SW),
    ("MIT License", SW),
    ("The MIT License (MIT)", SW),
    ("MIT OR Apache-2.0", SW),
    ("MIT or Apache 2.0", SW),
    ("MIT License or GNU General Public License v3", SW),
    ("Apache-2.0 AND MIT", SW),
    ("MIT, BSD", SW),
    ("MIT OR LicenseRef-x", SW),
    ("Apache-2.0 WITH LLVM-exception", SW),
    ("Licensed under the MIT license, see LICENSE.txt", SW),
    ("0BSD", SW),
    ("MIT-0", SW),
    ("License :: OSI Approved :: MIT License", SW),
    ("License :: OSI Approved :: Apache Software License", SW),
    ("https://opensource.org/licenses/MIT", SW),
    ("http://www.apache.org/licenses/LICENSE-2.0.txt", SW),
    ("https://spdx.org/licenses/BSD-3-Clause.html", SW),
    ("ＭＩＴ", SW),
    ("unknown / site terms (the scraper's Kaggle re-release says CC0); treated as private clinical text", RESTRICTED),
    ("no licence; private e-mail released by FERC", RESTRICTED),
    ("no licence; Amazon user reviews, copyrighted", RESTRICTED),
    ("no licence stated; IMDb user reviews, copyright of their authors", RESTRICTED),
    ("copyright BBC; non-commercial research use only", RESTRICTED),
    ("GPL-3.0-only OR ( AND CC-BY-NC-4.0)", RESTRICTED),
    ("copyright Reuters/Carnegie; free for research only", RESTRICTED),
    ("BioMed Central open access (verbatim redistribution)", RESTRICTED),
    ("CC-BY-NC (stated in text)", RESTRICTED),
    ("unknown (no licence statement in the PMC XML)", RESTRICTED),
    ("Apache modified", RESTRICTED),
    ("Freely Distributable, BSD License", RESTRICTED),
    ("LicenseRef-Repoze-BSD-derived", RESTRICTED),
    ("LicenseRef-MIT-Bootstrap", RESTRICTED),
    ("LicenseRef-Apache", RESTRICTED),
    ("DocumentRef-x:LicenseRef-MIT", RESTRICTED),
    ("MIT AND LicenseRef-x", RESTRICTED),
    ("MIT-CMU", RESTRICTED),
    ("MIT-style", RESTRICTED),
    ("BSD-like", RESTRICTED),
    ("not MIT", RESTRICTED),
    ("MIT (non-commercial use only)", RESTRICTED),
    ("MIT (GPL for the plugins)", RESTRICTED),
    ("MIT License (see LICENSE.proprietary)", RESTRICTED),
    ("CC0 (except images)", RESTRICTED),
    ("Copyright 2020 Somebody; Apache 2.0", RESTRICTED),
    ("MIT with Commons Clause", RESTRICTED),
    ("MIT until version 2", RESTRICTED),
    ("MIT/X11", RESTRICTED),
    ("MIT and GPL", RESTRICTED),
    ("MIT or Apache and GPL", RESTRICTED),
    ("MIT, whatever the boss says", RESTRICTED),
    ("Public Domain, BSD License, GNU General Public License (GPL)", RESTRICTED),
    ("public domain outside Germany", RESTRICTED),
    ("not in the public domain", RESTRICTED),
    ("CC-BY-4.0-NC", RESTRICTED),
    ("CC BY 4.0; non commercial", RESTRICTED),
    ("Creative Commons", RESTRICTED),
    ("Apache-1.1", RESTRICTED),
    ("BSD-4-Clause", RESTRICTED),
    ("BSD-3-Clause-No-Nuclear-License", RESTRICTED),
    ("ISC", RESTRICTED),
    ("PSF-2.0", RESTRICTED),
    ("MPL-2.0", RESTRICTED),
    ("Zlib", RESTRICTED),
    ("BSL-1.0", RESTRICTED),
    ("HPND", RESTRICTED),
    ("WTFPL", RESTRICTED),
    ("ODC-By-1.0", RESTRICTED),
    ("Glulxe", RESTRICTED),
    ("MIT WITH Some-unknown-exception", RESTRICTED),
    ("MIT WITH mif-exception", RESTRICTED),
    ("License :: OSI Approved", RESTRICTED),
    ("License :: Other/Proprietary License", RESTRICTED),
    ("https://creativecommons.org.example/licenses/by/4.0/", RESTRICTED),
    ("https://creativecommons.org@example.org/licenses/by/4.0/", RESTRICTED),
    ("https://creativecommons.org/licenses/by-4.0/", RESTRICTED),
    ("https://example.org/licenses/MIT", RESTRICTED),
    ("", RESTRICTED),
    ("   ", RESTRICTED),
    ("None", RESTRICTED),
    ("UNKNOWN", RESTRICTED),
    ("other", RESTRICTED),
    ("TBD", RESTRICTED),
    ("see LICENSE", RESTRICTED),
    ("Custom", RESTRICTED),
    ("All rights reserved", RESTRICTED),
    ("()", RESTRICTED),
    ("МIT", RESTRICTED),
    ("M\u200bIT", RESTRICTED),
    ("MІT", RESTRICTED),
    ("MIT\u0301", RESTRICTED),
    ("MIT OR", RESTRICTED),
    ("AND MIT AND", RESTRICTED),
]


@pytest.mark.parametrize(("statement", "tier"), TIERS)
def test_statement_is_read_as_tier(statement: str, tier: Tier) -> None:
    assert classify(statement).tier is tier


SPDX: list[tuple[str, str]] = [
    ("MIT OR GPL-3.0-only", "MIT OR GPL-3.0-only"),
    ("mit or apache-2.0", "MIT OR Apache-2.0"),
    ("CC BY-SA 2.0", "CC-BY-SA-2.0"),
    ("CC-BY-3", "CC-BY-3.0"),
    ("CC-BY-3.0-US", "CC-BY-3.0-US"),
    ("Creative Commons Attribution 2.5 Generic", "CC-BY-2.5"),
    ("cc-by-nc-sa-4.0", "CC-BY-NC-SA-4.0"),
    ("https://creativecommons.org/licenses/by-nc-nd/3.0/us/deed.en", "CC-BY-NC-ND-3.0"),
    ("https://creativecommons.org/licenses/by/3.0/us/", "CC-BY-3.0-US"),
    ("Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International", "CC-BY-NC-ND-4.0"),
    ("GPLv2+", "GPL-2.0-or-later"),
    ("GPL3", "GPL-3.0-only"),
    ("GPL-3.0", "GPL-3.0-only"),
    ("GPL-2.0+", "GPL-2.0-or-later"),
    ("GPL v3 or any later version", "GPL-3.0-or-later"),
    ("GNU GPL version 2 or later", "GPL-2.0-or-later"),
    ("GPL (file header)", "LicenseRef-silo-GPL"),
    ("GNU General Public License (GPL)", "LicenseRef-silo-GPL"),
    ("GNU General Public License v2 (GPLv2)", "GPL-2.0-only"),
    ("GNU General Public License v3 or later (GPLv3+)", "GPL-3.0-or-later"),
    ("GNU Lesser General Public License v3 (LGPLv3)", "LGPL-3.0-only"),
    ("GNU Lesser General Public License v3 or later (LGPLv3+)", "LGPL-3.0-or-later"),
    ("GNU Library or Lesser General Public License (LGPL)", "LicenseRef-silo-LGPL"),
    ("GNU Affero General Public License v3 or later (AGPLv3+)", "AGPL-3.0-or-later"),
    ("License :: OSI Approved :: GNU General Public License v3 (GPLv3)", "GPL-3.0-only"),
    ("LGPL-2.1", "LGPL-2.1-only"),
    ("GPL-2.0-only WITH Classpath-exception-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"),
    ("Apache-2.0+", "Apache-2.0+"),
    ("BSD License", "LicenseRef-silo-BSD"),
    ("something nobody knows", "NOASSERTION"),
]


@pytest.mark.parametrize(("statement", "spdx"), SPDX)
def test_statement_is_named_in_spdx(statement: str, spdx: str) -> None:
    assert classify(statement).spdx == spdx


DUTIES: list[tuple[str, set[Duty]]] = [
    ("CC0-1.0", set()),
    ("MIT", {Duty.notice}),
    ("MIT OR GPL-3.0-only", {Duty.notice}),
    ("MIT AND GPL-3.0-only", {Duty.notice, Duty.share_alike}),
    ("CC-BY-4.0", {Duty.attribution}),
    ("CC BY-SA 2.0", {Duty.attribution, Duty.share_alike}),
    ("CC-BY-NC (stated in text)", {Duty.attribution, Duty.non_commercial}),
    ("CC BY-NC-ND 4.0", {Duty.attribution, Duty.non_commercial, Duty.no_derivatives}),
    (
        "Creative Commons Attribution-NonCommercial-NoDerivatives 4.0 International",
        {Duty.attribution, Duty.non_commercial, Duty.no_derivatives},
    ),
    ("copyright BBC; non-commercial research use only", {Duty.non_commercial}),
    ("GPL-2.0-only WITH Classpath-exception-2.0", {Duty.notice, Duty.share_alike}),
]


@pytest.mark.parametrize(("statement", "duties"), DUTIES)
def test_duties_follow_the_licence(statement: str, duties: set[Duty]) -> None:
    assert classify(statement).duties == duties


def test_restricted_text_may_be_stored_and_indexed_but_never_trained_on() -> None:
    rights = classify("GPL-3.0-only").rights
    assert (rights.train, rights.store, rights.quote, rights.index) == (False, True, 50, True)
    assert classify("CC-BY-4.0").rights.train


def test_evidence_says_what_where_and_how() -> None:
    (evidence,) = classify("Apache 2.0", where="METADATA:12").evidence
    assert (evidence.asserted, evidence.where, evidence.method) == ("Apache 2.0", "METADATA:12", "name")
    assert evidence.confidence == 0.9


def test_a_capped_statement_never_grants() -> None:
    tag = assess("MIT", where="hub", method="hub-tag", confidence_cap=0.3)
    assert (tag.method, tag.confidence, tag.tier) == ("hub-tag", 0.3, Tier.sw)


@pytest.mark.parametrize(
    "statement",
    [
        "(" * 10_000,
        "(" * 10_000 + "MIT" + ")" * 10_000,
        "MIT OR " * 150_000,
        "a" * 1_000_000,
        "(MIT " * 60,
        "MIT," * 99,
    ],
    ids=["open", "nested", "megabyte", "word", "unbalanced", "list"],
)
def test_pathological_statements_are_read_quickly(statement: str) -> None:
    start = time.perf_counter()
    verdict = classify(statement)
    assert time.perf_counter() - start < 1
    assert verdict.tier is Tier.restricted or "MIT," in statement
    assert len(verdict.evidence[0].asserted) <= 300


def test_denied_rights_are_a_choice_of_four() -> None:
    assert set(Right) == {"train", "store", "quote", "index"}


def test_tiers_compare_by_risk() -> None:
    assert sorted([RESTRICTED, BY, PD, SW]) == [PD, SW, BY, RESTRICTED]
    assert PD < "sw" and RESTRICTED >= "by" and not SW > SW
