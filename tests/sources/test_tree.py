from __future__ import annotations

from pathlib import Path

import pytest

from silo.records import Candidate
from silo.rights import is_license_name
from silo.sources.reuse import _dep5_glob, _toml_glob, matches
from silo.sources.tree import git_owner
from tests.sources.reading import bad, good, read_source, spdx, tiers, write

MIT = """MIT License

Copyright (c) 2024 Ann

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


def by_path(base: Path) -> dict[str, Candidate]:
    return {item.external_id: item for item in good(read_source(base, "tree", "in"))}


def test_the_nearest_licence_file_counts(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"in/LICENSE": MIT, "in/a.py": "a", "in/lib/deep/b.c": "b", "in/gpl/c.md": "c"}
    write(tmp_path, files | {"in/gpl/COPYING": "GPL-3.0-only", "in/gpl/LICENSE.txt": "CC0-1.0"})
    found = by_path(tmp_path)
    assert [(name, spdx(item)) for name, item in sorted(found.items())] == [
        ("a.py", ["MIT"]),
        ("gpl/c.md", ["GPL-3.0-only", "CC0-1.0"]),
        ("lib/deep/b.c", ["MIT"]),
    ]
    assert found["lib/deep/b.c"].evidence[0].where == "in/LICENSE"
    assert [found["a.py"].domain, found["gpl/c.md"].domain, found["a.py"].owner] == ["code", "docs", "in"]


def test_what_is_no_source_is_left_out(tmp_path: Path) -> None:
    skipped = [
        "in/.git/x.py",
        "in/node_modules/m.js",
        "in/build/b.py",
        "in/a.so",
        "in/LICENSE.md",
        "in/LICENSES/MIT.txt",
    ]
    write(tmp_path, dict.fromkeys(skipped, "x") | {"in/a.py": "a"})
    assert list(by_path(tmp_path)) == ["a.py"]


def test_reuse_replaces_the_licence_above(tmp_path: Path) -> None:
    toml = """version = 1
[[annotations]]
path = "docs/**"
SPDX-License-Identifier = "CC-BY-4.0"

[[annotations]]
path = ["docs/*.txt", "both/**"]
precedence = "aggregate"
SPDX-License-Identifier = "CC0-1.0"

[[annotations]]
path = "forced/*"
precedence = "override"
SPDX-License-Identifier = "GPL-3.0-only"
"""
    files: dict[str, str | bytes] = {"in/LICENSE": MIT, "in/REUSE.toml": toml, "in/a.py": "a", "in/docs/b.md": "b"}
    files |= {"in/docs/c.txt": "c", "in/both/d.py": "d", "in/both/d.py.license": "SPDX-License-Identifier: MPL-2.0\n"}
    files |= {"in/forced/e.py": "e", "in/forced/e.py.license": "SPDX-License-Identifier: MIT\n"}
    write(tmp_path, files)
    found = {name: spdx(item) for name, item in by_path(tmp_path).items()}
    assert found == {
        "a.py": ["MIT"],
        "both/d.py": ["CC0-1.0", "MPL-2.0"],
        "docs/b.md": ["CC-BY-4.0"],
        "docs/c.txt": ["CC0-1.0"],
        "forced/e.py": ["GPL-3.0-only"],
    }


def test_a_closer_reuse_file_wins(tmp_path: Path) -> None:
    outer = '[[annotations]]\npath = "**"\nSPDX-License-Identifier = "GPL-3.0-only"\n'
    inner = '[[annotations]]\npath = "*.py"\nSPDX-License-Identifier = "MIT"\n'
    write(tmp_path, {"in/REUSE.toml": outer, "in/lib/REUSE.toml": inner, "in/lib/a.py": "a", "in/lib/b.c": "b"})
    assert {name: spdx(item) for name, item in by_path(tmp_path).items()} == {
        "lib/a.py": ["MIT"],
        "lib/b.c": ["GPL-3.0-only"],
    }


def test_dep5_is_read(tmp_path: Path) -> None:
    dep5 = """Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: 2024 Ann
License: CC0-1.0

Files: src/*.c
 src/old/?.py
Copyright: 2024 Ann
License: BSD-3-Clause
 Redistribution and use ...
"""
    write(tmp_path, {"in/.reuse/dep5": dep5, "in/src/x/a.c": "a", "in/src/old/b.py": "b", "in/src/old/bb.py": "c"})
    assert {name: spdx(item) for name, item in by_path(tmp_path).items()} == {
        "src/old/b.py": ["BSD-3-Clause"],
        "src/old/bb.py": ["CC0-1.0"],
        "src/x/a.c": ["BSD-3-Clause"],
    }


def test_statements_that_cannot_be_read_restrict(tmp_path: Path) -> None:
    write(tmp_path, {"in/LICENSE": MIT, "in/lib/REUSE.toml": "[[", "in/lib/a.py": "a", "in/b.py": "b"})
    items = read_source(tmp_path, "tree", "in")
    assert bad(items) == [("in/lib/REUSE.toml", "metadata-invalid")]
    assert {item.external_id: tiers(item) for item in items if isinstance(item, Candidate)} == {
        "b.py": ["sw"],
        "lib/a.py": ["restricted"],
    }
    write(tmp_path, {"out/a.py": "a", "secret": MIT})
    (tmp_path / "out" / "LICENSE").symlink_to(tmp_path / "secret")
    assert tiers(good(read_source(tmp_path, "tree", "out"))[0]) == ["restricted"]


@pytest.mark.parametrize(
    ("url", "owner"),
    [
        ("https://github.com/pallets/click.git", "pallets"),
        ("git@github.com:pallets/click.git", "pallets"),
        ("https://user:secret@gitlab.com/group/sub/click", "sub"),
        ("/srv/click.git", ""),
    ],
)
def test_the_owner_comes_from_the_remote(tmp_path: Path, url: str, owner: str) -> None:
    write(tmp_path, {"x/.git/config": f'[core]\n\tbare = false\n[remote "origin"]\n\turl = {url}\n\tfetch = +x\n'})
    assert git_owner(tmp_path / "x") == owner


@pytest.mark.parametrize("name", ["LICENSE", "licence.md", "COPYING", "COPYING.LESSER", "LICENSE-MIT", "UNLICENSE"])
def test_licence_names_are_known(name: str) -> None:
    assert is_license_name(name)


@pytest.mark.parametrize("name", ["license.py", "licenses.json", "copyright", "LICENSING.rst", "a.license", "copyingx"])
def test_other_names_are_not(name: str) -> None:
    assert not is_license_name(name)


@pytest.mark.parametrize(
    ("pattern", "path", "toml", "dep5"),
    [
        ("*.py", "a.py", True, True),
        ("*.py", "x/a.py", False, True),
        ("**.py", "x/a.py", True, True),
        ("x/**", "x/y/z", True, True),
        ("a?", "ab", False, True),
        ("a?", "a?", True, True),
        (r"\*", "*", True, True),
        (r"\*", "x", False, False),
        ("", "", True, True),
    ],
)
def test_globs(pattern: str, path: str, toml: bool, dep5: bool) -> None:
    assert matches(tuple(_toml_glob(pattern)), path) is toml
    assert matches(tuple(_dep5_glob(pattern)), path) is dep5
