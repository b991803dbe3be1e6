"""From a folder of documents and a model to attributed text (`silo quickstart`), or to answers (`silo.index`)."""

from __future__ import annotations

import glob
from functools import partial
from pathlib import Path
from typing import Any

from silo.errors import SiloError
from silo.files import nearest_path, remove_tree
from silo.inference.ask.asker import Asker
from silo.lm.manifest import CODEC_FOLDER, require_model
from silo.pairing import create_store, open_store
from silo.progress import Advance
from silo.recipe import SourceRecipe
from silo.records import Quarantined
from silo.sources import Tally, plan, read_documents
from silo.store.adding.add import Added
from silo.store.store import Store


def fill_from_folder(
    folder: Path,
    model: Path,
    place: Path,
    *,
    owner: str = "",
    license: str = "",
    tally: Tally | None = None,
    advance: Advance = lambda *_: None,
) -> tuple[Added, list[Quarantined]]:
    """Make a store for a model, or take the one that is there, and put a folder's files in.

    Returns what became of the documents, and what could not be read. A model without a codec gets a store with exact
    matches and passages, which need none. `tally` is told what was skipped.
    """
    if not folder.is_dir():
        raise SiloError("input-missing", f"there is no folder {folder}", nearest_path(folder))
    source = SourceRecipe("folder", (glob.escape(str(folder.absolute())),), owner=owner, license=license)
    plan(source, folder)
    require_model(model)
    searches = ("knn", "ngram", "bm25") if (model / CODEC_FOLDER).is_dir() else ("ngram", "bm25")
    fresh = not (place / "data").exists()
    opened = partial(create_store, searches=searches) if fresh else partial(open_store, encoding=True)
    store = opened(place, model)
    unreadable: list[Quarantined] = []
    try:
        documents = read_documents(source, folder, unreadable, tally=tally, advance=advance)
        added = store.add(documents, advance=advance)
    finally:
        empty = fresh and next(store.documents(), None) is None
        store.close()
        if empty:
            remove_tree(place)
    if not added.added and not added.unchanged:
        why = [f"{item.code}: {item.where}" for item in unreadable[:1]] + [item.detail for item in added.refusals[:1]]
        raise SiloError("input-empty", f"{folder} has no text that may be stored", "; ".join(why))
    return added, unreadable


def store_beside(folder: Path) -> Path:
    """Where the store of a folder goes if nobody says where."""
    named = folder.resolve() if folder.name in ("", "..") else folder
    if not named.name:
        raise SiloError("usage", f"there is no place beside {folder}", "say where the store is to be")
    return named.with_name(named.name + ".silo")


def index_folder(
    folder: str | Path,
    model: str | Path,
    store: str | Path | None = None,
    *,
    owner: str = "",
    license: str = "",
    **options: Any,
) -> Asker:
    """`silo.index`: put a folder's files into a store and open it for questions; options as for `Asker.open`."""
    source = Path(folder).expanduser()
    place = Path(store) if store else store_beside(source)
    fill_from_folder(source, Path(model), place, owner=owner, license=license)
    return Asker.open(place, model, **options)


def first_words(store: Store) -> str:
    """The beginning of the first document, for a first prompt."""
    return " ".join(next(store.documents()).text.split()[:12])
