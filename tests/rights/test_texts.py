"""Licence files and headers, on fragments and on the real files of installed distributions."""

from __future__ import annotations

import importlib.metadata
import time
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.records import Evidence, Tier
from silo.rights import read_header, read_license_file, resolve
from silo.rights.licences.texts import parse_notices

MIT = """Copyright (c) 2020 Somebody

Permission is hereby granted, free of charge, to any person obtaining a copy of this software, to deal
in the Software without restriction, including the rights to sublicense it, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or
substantial portions of the Software.
"""
BSD = """Copyright (c) 2020, Somebody. All rights reserved.

Redistribution and use in source and binary forms, with or without modification, are permitted provided
that the following conditions are met:
1. Redistributions of source code must retain the above copyright notice.
2. Redistributions in binary form must reproduce the above copyright notice.
"""
NAMES = (
    "3. Neither the name nor the contributors may be used to endorse or promote products derived from this software.\n"
)
ADVERTISING = "3. All advertising materials mentioning features or use of this software must say so.\n"
ISC = """Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee
is hereby granted, provided that the above copyright notice and this permission notice appear in all copies.
"""
ZERO = """Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee
is hereby granted. THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES.
"""
GPL_NOTICE = """This program is free software: you can redistribute it and/or modify it under the terms of the
GNU {kind}General Public License as published by the Free Software Foundation, {version}.
"""
LATER = "either version {} of the License, or (at your option) any later version"
APACHE_NOTICE = """Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
"""

FILES: list[tuple[str, str, Tier]] = [
    (MIT, "MIT", Tier.sw),
    ("MIT License\n", "MIT", Tier.sw),
    ("SPDX-License-Identifier: MIT OR Apache-2.0\n", "MIT OR Apache-2.0", Tier.sw),
    (BSD, "BSD-2-Clause", Tier.sw),
    (BSD + NAMES, "BSD-3-Clause", Tier.sw),
    (BSD + ADVERTISING + NAMES, "BSD-4-Clause", Tier.restricted),
    (ZERO, "0BSD", Tier.sw),
    (ISC, "ISC", Tier.restricted),
    (MIT + BSD, "BSD-2-Clause AND MIT", Tier.sw),
    (MIT + ISC, "ISC AND MIT", Tier.restricted),
    (MIT + "\nGNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007\n", "GPL-3.0-only AND MIT", Tier.restricted),
    ("GNU LESSER GENERAL PUBLIC LICENSE\n  Version 2.1, February 1999\n", "LGPL-2.1-only", Tier.restricted),
    ("GNU AFFERO GENERAL PUBLIC LICENSE\n Version 3, 19 November 2007\n", "AGPL-3.0-only", Tier.restricted),
    (MIT + "\nThe Software shall be used for Good, not Evil.\n", "JSON", Tier.restricted),
    (MIT + "\n“Commons Clause” License Condition v1.0\n", "NOASSERTION", Tier.restricted),
    (MIT + "\nFor non-commercial use.\n", "NOASSERTION", Tier.restricted),
    (MIT + "\nThe Software may not be used for surveillance.\n", "NOASSERTION", Tier.restricted),
    (MIT + "\nNo AI training is allowed.\n", "NOASSERTION", Tier.restricted),
    (MIT + "\nThe folder x is licensed under the Foo terms.\n", "NOASSERTION", Tier.restricted),
    (MIT + "\n" + "Other words without any meaning. " * 200, "NOASSERTION", Tier.restricted),
    (APACHE_NOTICE, "Apache-2.0", Tier.sw),
    (
        "This is free and unencumbered software released into the public domain. Anyone is free to copy, modify, "
        "publish, use, compile, sell, or distribute this software.",
        "Unlicense",
        Tier.pd,
    ),
    (
        "Creative Commons Attribution-NonCommercial 4.0 International\n By exercising the Licensed Rights",
        "CC-BY-NC-4.0",
        Tier.restricted,
    ),
    (
        "Attribution-ShareAlike 4.0 International\n By exercising the Licensed Rights (defined below), You accept and "
        "agree to be bound",
        "CC-BY-SA-4.0",
        Tier.by,
    ),
    (
        "Attribution 4.0 International\n By exercising the Licensed Rights (defined below), You accept and "
        "agree to be bound",
        "CC-BY-4.0",
        Tier.by,
    ),
    ("Do whatever the owner of this file lets you do. " * 12, "NOASSERTION", Tier.restricted),
    ("", "NOASSERTION", Tier.restricted),
]


@pytest.mark.parametrize(("text", "spdx", "tier"), FILES)
def test_license_file_is_recognised(text: str, spdx: str, tier: Tier) -> None:
    evidence = read_license_file(text, where="LICENSE")
    assert (evidence.spdx, evidence.tier, evidence.where) == (spdx, tier, "LICENSE")


def test_an_unrecognised_file_says_so() -> None:
    assert read_license_file("some words of our own " * 30, where="COPYING").method == "unrecognised"


def commented(text: str, mark: str = "# ") -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines()) + "\nimport os\n"


HEADERS: list[tuple[str, str, Tier]] = [
    ("#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0-or-later\n", "GPL-2.0-or-later", Tier.restricted),
    ("/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n", "MIT OR Apache-2.0", Tier.sw),
    ("<!-- SPDX-License-Identifier: CC-BY-4.0 -->\n", "CC-BY-4.0", Tier.by),
    ("# SPDX-License-Identifier: whatever\n", "NOASSERTION", Tier.restricted),
    (commented(MIT), "MIT", Tier.sw),
    (commented(BSD), "BSD-2-Clause", Tier.sw),
    (commented(BSD + NAMES, " * "), "BSD-3-Clause", Tier.sw),
    (commented(ISC, "// "), "ISC", Tier.restricted),
    (commented(APACHE_NOTICE), "Apache-2.0", Tier.sw),
    (commented("Licensed under the MIT License. See LICENSE for details."), "MIT", Tier.sw),
    (commented("This file is released under the terms of the Apache License, Version 2.0."), "Apache-2.0", Tier.sw),
    (commented(GPL_NOTICE.format(kind="", version=LATER.format(3))), "GPL-3.0-or-later", Tier.restricted),
    (commented(GPL_NOTICE.format(kind="", version="version 2")), "GPL-2.0-only", Tier.restricted),
    (commented(GPL_NOTICE.format(kind="Lesser ", version=LATER.format("2.1"))), "LGPL-2.1-or-later", Tier.restricted),
    (commented(GPL_NOTICE.format(kind="Affero ", version=LATER.format(3))), "AGPL-3.0-or-later", Tier.restricted),
    (commented(GPL_NOTICE.format(kind="", version="see COPYING")), "LicenseRef-silo-GPL", Tier.restricted),
    (
        commented("This Source Code Form is subject to the terms of the Mozilla Public\nLicense, v. 2.0."),
        "MPL-2.0",
        Tier.restricted,
    ),
    (
        commented("This work is licensed under a Creative Commons Attribution-ShareAlike\n4.0 International License."),
        "CC-BY-SA-4.0",
        Tier.by,
    ),
    (
        "This is an open access article distributed under the terms of the Creative Commons Attribution License 2.0.\n",
        "CC-BY-2.0",
        Tier.by,
    ),
    (
        "This is an open access article distributed under the terms of the Creative Commons Attribution License, which "
        "permits non-commercial use.\n",
        "NOASSERTION",
        Tier.restricted,
    ),
    (
        commented("Copyright ACME. All rights reserved.\nProprietary and confidential."),
        "LicenseRef-silo-proprietary",
        Tier.restricted,
    ),
    (commented(MIT + "Not for commercial use."), "NOASSERTION", Tier.restricted),
    ("This document has been placed in the public domain.\n", "LicenseRef-silo-public-domain", Tier.pd),
]


@pytest.mark.parametrize(("text", "spdx", "tier"), HEADERS)
def test_header_is_recognised(text: str, spdx: str, tier: Tier) -> None:
    found = read_header(text, where="a.py")
    assert [(item.spdx, item.tier) for item in found] == [(spdx, tier)]
    assert resolve(found).tier is tier


def test_header_evidence_names_its_line() -> None:
    text = "#!/usr/bin/env python\n\n" + commented(APACHE_NOTICE) + "# SPDX-License-Identifier: MIT\n"
    assert {(item.spdx, item.where) for item in read_header(text, where="a.py")} == {
        ("Apache-2.0", "a.py:3"),
        ("MIT", "a.py:7"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "The GNU General Public License is a free software licence by the Free Software Foundation. Hadoop is "
        "licensed under the Apache License 2.0, Perl under the Artistic License, and nginx under a BSD license.",
        "The MIT License is permissive. Permission is given to anyone. The Creative Commons licences came later.",
        "She asked for permission to redistribute the proprietary, confidential report. All rights reserved, he said.",
        "Add a line such as SPDX-License-Identifier: MIT to every file.",
        "Wikipedia text is available under the Creative Commons Attribution-ShareAlike License in most cases.",
        "The novel is in the public domain in Australia.",
        "",
    ],
)
def test_prose_about_licences_is_no_notice(text: str) -> None:
    assert read_header(text, where="article") == ()


def test_notices_below_the_head_do_not_count() -> None:
    assert read_header("\n" * 70 + commented(APACHE_NOTICE), where="a") == ()


def test_text_without_a_notice_is_passed_over_quickly() -> None:
    text = "The quick brown fox jumps over the lazy dog and thinks of nothing else. " * 200
    read_header(text, where="a")
    start = time.perf_counter()
    for _ in range(200):
        read_header(text, where="a")
    assert (time.perf_counter() - start) / 200 < 200e-6


def distribution_licenses() -> list[tuple[str, str, Evidence]]:
    found = []
    for distribution in importlib.metadata.distributions():
        expression = distribution.metadata.json.get("license_expression", "")
        for file in distribution.files or ():
            if expression not in ("MIT", "BSD-3-Clause", "Apache-2.0") or ".dist-info" not in file.parts[0]:
                continue
            if file.name.upper().split(".")[0] in ("LICENSE", "LICENCE", "COPYING") and Path(file.locate()).is_file():
                text = file.read_text(encoding="utf-8")
                found.append((str(file), expression, read_license_file(text, where=str(file))))
    return found


def test_installed_license_files_agree_with_their_metadata() -> None:
    found = distribution_licenses()
    if len(found) < 10:
        pytest.skip("too few distributions with a License-Expression are installed")
    differ = [
        f"{file}: {expression} read as {item.spdx}" for file, expression, item in found if item.spdx != expression
    ]
    assert len(differ) <= 0.2 * len(found), differ


def test_broken_fragments_are_refused() -> None:
    with pytest.raises(SiloError) as error:
        parse_notices('[[text]]\nspdx = "no-such-licence"\nall = []\nwords = 1\n')
    assert error.value.code == "license-table"
