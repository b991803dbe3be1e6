"""silo: language models that keep legal risk out of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from silo.inference.ask.asker import Asker
    from silo.inference.session import Session

__version__ = "0.1.0"


def open(model: str | Path, stores: str | Path | Sequence[str | Path] = (), **options: Any) -> Session:  # noqa: A001
    """A model and stores, ready to `generate`, `answer` and `score`; options as for `inference.session.open_session`.

    Everything heavy is imported here and not with silo.
    """
    from silo.inference.session import open_session

    return open_session(model, stores, **options)


def index(folder: str | Path, model: str | Path, store: str | Path | None = None, **options: Any) -> Asker:
    """Put the files of a folder into a store beside it, or at `store`, and open it for questions: `.ask("...")`.

    What is there already stays. Options as for `journeys.quickstart.index_folder`: owner, license, policy, threads.
    """
    from silo.journeys.quickstart import index_folder

    return index_folder(folder, model, store, **options)
