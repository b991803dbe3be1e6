from __future__ import annotations

import platform
from pathlib import Path

import pytest

from silo.errors import SiloError
from silo.recipe import SourceRecipe
from silo.records import Candidate
from silo.sources import plan
from tests.sources.reading import good, read_source, spdx, tiers, write
from tests.sources.test_tree import MIT


def install(base: Path, metadata: str, files: dict[str, str | bytes], name: str = "Some_Thing") -> None:
    """Lay out a distribution as an installer would."""
    info = f"{name}-1.0.dist-info"
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
    everything = {**files, f"{info}/METADATA": head + metadata}
    record = "".join(f"{path},,\n" for path in everything) + f"{info}/RECORD,,\n../../bin/tool.py,,\n/etc/x.py,,\n"
    write(base, everything | {f"{info}/RECORD": record})


def documents(base: Path, name: str = "some-thing") -> dict[str, Candidate]:
    return {item.external_id: item for item in good(read_source(base, "distributions", name))}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_code_and_docs_belong_to_the_distribution(site: Path) -> None:
    files: dict[str, str | bytes] = {"thing/a.py": "a", "thing/README.md": "r", "thing/tests/data.txt": "d"}
    files |= {
        "thing/_vendor/v.py": "v",
        "thing/x.so": b"\x7fELF",
        "thing/big.py": "x" * 1_000_001,
        "thing/empty.py": "",
    }
    install(site, "License-Expression: MIT\nClassifier: License :: OSI Approved :: Apache Software License\n", files)
    found = documents(site)
    assert list(found) == [
        "Some_Thing-1.0:thing/README.md",
        "Some_Thing-1.0:thing/_vendor/v.py",
        "Some_Thing-1.0:thing/a.py",
    ]
    code = found["Some_Thing-1.0:thing/a.py"]
    assert (code.owner, code.source, code.domain) == ("Some_Thing", "pypi:some-thing", "code")
    assert found["Some_Thing-1.0:thing/README.md"].domain == "docs"
    assert spdx(code) == ["MIT"]
    assert found["Some_Thing-1.0:thing/_vendor/v.py"].evidence == ()


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ("License-Expression: MIT OR GPL-3.0-only\n", ["sw"]),
        ("License: GPL\nClassifier: License :: OSI Approved :: MIT License\n", ["sw"]),
        (
            "Classifier: License :: OSI Approved :: MIT License\n"
            "Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)\n",
            ["sw", "restricted"],
        ),
        ("Classifier: License :: OSI Approved\nLicense: MIT\n", ["sw"]),
        ("License: UNKNOWN\n", []),
        ("", []),
        ("License: " + MIT.strip().replace("\n", "\n        ") + "\n", ["sw"]),
    ],
)
def test_the_licence_is_what_core_metadata_says(site: Path, metadata: str, expected: list[str]) -> None:
    install(site, metadata, {"thing/a.py": "a"})
    assert tiers(documents(site)["Some_Thing-1.0:thing/a.py"]) == expected


def test_licence_files_are_evidence_too(site: Path) -> None:
    info = "Some_Thing-1.0.dist-info"
    files: dict[str, str | bytes] = {
        "thing/a.py": "a",
        f"{info}/licenses/LICENSE": MIT,
        f"{info}/COPYING": "GPL-3.0-only",
    }
    metadata = "License-Expression: MIT\nLicense-File: LICENSE\nLicense-File: ../../LICENSE\nLicense-File: AUTHORS\n"
    install(site, metadata, files)
    found = documents(site)["Some_Thing-1.0:thing/a.py"]
    assert sorted(tiers(found)) == ["restricted", "restricted", "sw", "sw"]


def test_a_licence_file_in_unknown_words_does_not_outweigh_the_metadata(site: Path) -> None:
    files: dict[str, str | bytes] = {
        "thing/a.py": "a",
        "Some_Thing-1.0.dist-info/LICENSE": "Take either of the others.",
    }
    install(site, "License-Expression: Apache-2.0 OR BSD-3-Clause\n", files)
    assert tiers(documents(site)["Some_Thing-1.0:thing/a.py"]) == ["sw"]
    install(site, "", files)
    assert tiers(documents(site)["Some_Thing-1.0:thing/a.py"]) == ["restricted"]


def test_names_are_found_however_they_are_spelled(site: Path) -> None:
    install(site, "", {"thing/a.py": "a"})
    for name in ("some-thing", "Some_Thing", "some.thing"):
        (part,) = plan(SourceRecipe("distributions", (name,)), site)
        assert (part.label, part.bytes, part.members) == ("some-thing", 1, ("thing/a.py",))
    with pytest.raises(SiloError, match="no distribution nothing-here"):
        plan(SourceRecipe("distributions", ("nothing-here",)), site)


def test_a_changed_file_changes_the_stamp(site: Path) -> None:
    install(site, "", {"thing/a.py": "a"})
    recipe = SourceRecipe("distributions", ("some-thing",))
    (before,) = plan(recipe, site)
    write(site, {"thing/a.py": "aa"})
    assert plan(recipe, site)[0].stamp != before.stamp


def test_this_environment_has_real_distributions() -> None:
    labels = [part.label for part in plan(SourceRecipe("distributions"), Path())]
    assert {"packaging", "pytest"} <= set(labels) and "stdlib" not in labels
    assert labels == sorted(labels)
    found = good(read_source(Path(), "distributions", "pytest"))
    assert {item.owner for item in found} == {"pytest"}
    assert {tier for item in found for tier in tiers(item)} == {"sw"}
    assert not any(str(Path.home()) in item.external_id or item.external_id.startswith("/") for item in found)


def test_the_standard_library_is_psf_and_nothing_beyond() -> None:
    found = {item.external_id: item for item in good(read_source(Path(), "distributions", "stdlib"))}
    abc = found[f"python-{platform.python_version()}:abc.py"]
    assert (abc.owner, spdx(abc)) == ("Python Software Foundation", ["PSF-2.0"])
    assert not any("site-packages" in name or "/test/" in name for name in found)
    assert len(found) > 300
