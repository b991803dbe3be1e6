"""Hostile inputs: each case writes files that must cost no more than themselves, and says what has to happen.

`recipe_for(case)` names what to read below the directory that `case.write` filled. `expect_codes` lists the code of
every quarantined record (or of the one error that planning raises); `good` counts the records that survive.
"""

from __future__ import annotations

from silo.recipe import SourceRecipe
from tests.sources.hostile_case import Case
from tests.sources.hostile_files import FILES
from tests.sources.hostile_kinds import FOLDERS, OTHERS
from tests.sources.hostile_lines import LINES

__all__ = ["CASES", "Case", "recipe_for"]

CASES: list[Case] = [*LINES, *FILES, *FOLDERS, *OTHERS]

_PATHS = {"folder": ("texts",), "tree": ("tree",), "hub": ("dataset",)}


def recipe_for(case: Case) -> SourceRecipe:
    """The source that reads what the case wrote, relative to the directory it wrote into."""
    return SourceRecipe(kind=case.kind, paths=_PATHS.get(case.kind, ("in*",)), name="hostile")
