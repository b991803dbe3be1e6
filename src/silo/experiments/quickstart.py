"""`silo quickstart`: one command from a folder of documents and a model to attributed text."""

from __future__ import annotations

import glob
from pathlib import Path

from silo.corpus.stages import read_documents
from silo.corpus.units import Advance
from silo.datastore.adding import Added
from silo.datastore.store import Store
from silo.errors import SiloError
from silo.files import remove_tree
from silo.inference.codec import FOLDER
from silo.inference.stores import create_store, open_store
from silo.recipe import SourceRecipe
from silo.records import Quarantined


def fill_from_folder(
    folder: Path, model: Path, place: Path, *, owner: str = "", license: str = "", advance: Advance = lambda *_: None
) -> tuple[Added, list[Quarantined]]:
    """Make a store for a model, or take the one that is there, and put a folder's files in.

    Returns what became of the documents, and what could not be read. A model without a codec gets a store with exact
    matches and passages, which need none.
    """
    if not folder.is_dir():
        raise SiloError("input-missing", f"there is no folder {folder}")
    searches = ("knn", "ngram", "bm25") if (model / FOLDER).is_dir() else ("ngram", "bm25")
    fresh = not (place / "data").exists()
    store = create_store(place, model, searches=searches) if fresh else open_store(place, model, encoding=True)
    source = SourceRecipe("folder", (glob.escape(str(folder.absolute())),), owner=owner, license=license)
    unreadable: list[Quarantined] = []
    try:
        added = store.add(read_documents(source, folder, unreadable), advance=advance)
    finally:
        empty = fresh and next(store.documents(), None) is None
        store.close()
        if empty:
            remove_tree(place)
    if not added.added and not added.unchanged:
        why = [f"{item.code}: {item.where}" for item in unreadable[:1]] + [item.detail for item in added.refusals[:1]]
        raise SiloError("input-empty", f"{folder} has no text that may be stored", "; ".join(why))
    return added, unreadable


def first_words(store: Store) -> str:
    """The beginning of the first document, for a first prompt."""
    return " ".join(next(store.documents()).text.split()[:12])
