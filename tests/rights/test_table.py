"""The licence table is checked when it is loaded."""

from __future__ import annotations

from importlib import resources

import pytest

from silo.errors import SiloError
from silo.records import Duty, Tier
from silo.rights.licences.table import license_table, parse_table

TABLE = resources.files("silo.rights.licences").joinpath("licenses.toml").read_text(encoding="utf-8")
ROW = '\n[[license]]\nspdx = "New-1.0"\ntier = "sw"\nnames = ["new"]\nnote = "a test"\n'


def test_the_table_holds_the_papers_reading() -> None:
    permissive = {row.spdx for row in license_table().ids.values() if row.tier is Tier.sw}
    assert all(spdx.split("-")[0] in ("MIT", "BSD", "0BSD", "Apache", "LicenseRef") for spdx in permissive)
    by = {row.spdx for row in license_table().ids.values() if row.tier is Tier.by}
    assert all(spdx.removeprefix("LicenseRef-silo-").startswith("CC-BY") for spdx in by)


def test_share_alike_non_commercial_and_no_derivatives_are_never_lost() -> None:
    for row in license_table().ids.values():
        parts = row.spdx.split("-")
        if "CC" in parts:
            assert ("SA" in parts) == (Duty.share_alike in row.duties), row
            assert ("NC" in parts) == (Duty.non_commercial in row.duties), row
            assert ("ND" in parts) == (Duty.no_derivatives in row.duties), row
            assert row.tier is Tier.restricted or not {"NC", "ND"} & set(parts)


@pytest.mark.parametrize(
    "extra",
    [
        ROW.replace('"sw"', '"safe"'),
        ROW.replace("[[license]]", "[[license"),
        ROW.replace('"New-1.0"', '"MIT"').replace('["new"]', '["gpl"]'),
        ROW.replace('["new"]', '["the license"]'),
        ROW.replace('"a test"', '""'),
        ROW + 'teir = "pd"\n',
        ROW + 'duties = ["fame"]\n',
        ROW + 'refined_by = ["Nothing-1.0"]\n',
        ROW.replace('"sw"', '"restricted"') + "rights = { train = true }\n",
        ROW + "rights = { sing = true }\n",
    ],
)
def test_an_inconsistent_table_is_refused(extra: str) -> None:
    assert "new" in str(parse_table(TABLE + ROW).names)
    with pytest.raises(SiloError) as error:
        parse_table(TABLE + extra)
    assert error.value.code == "license-table"


def test_a_row_may_narrow_the_rights_of_its_tier() -> None:
    table = parse_table(TABLE + ROW + "rights = { quote = 10 }\n")
    assert table.ids["new-1.0"].rights.quote == 10
    assert table.ids["new-1.0"].rights.train
