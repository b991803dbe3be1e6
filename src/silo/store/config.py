"""What a store is made for: its searches, and the tokenizer, model and codec it works with, by fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from silo.errors import SiloError
from silo.files import fingerprint
from silo.search.dtypes import Float32s, Multiply
from silo.text.tokenizer import Ids, Tokenizer

FORMAT = "silo-store-1"
SEARCHES = ("knn", "ngram", "bm25")
BUCKET_BYTES = 4 << 20


Quantise = Callable[[Float32s, Multiply], tuple[NDArray[Any], ...]]


class Encoder(Protocol):
    """What a store needs of a language model: its tokenizer, and what is made of the keys of documents."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def context(self) -> int: ...

    def codes(self, documents: Sequence[Ids], quantise: Quantise) -> Iterator[tuple[NDArray[Any], ...]]: ...


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Everything beside the documents that shapes the bytes of a store.

    `model` and `codec` are "" without knn; `analysis` (how passages are cut into words) is "" without bm25.
    """

    searches: tuple[str, ...]
    tokenizer: str
    vocabulary: int
    begin: int
    model: str = ""
    codec: str = ""
    passage_tokens: int = 0
    passage_stride: int = 0
    analysis: str = ""
    bucket_bytes: int = BUCKET_BYTES

    @property
    def fingerprint(self) -> str:
        """Names the configuration."""
        return fingerprint(self.as_json())

    def as_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "searches": list(self.searches)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> StoreConfig:
        """The inverse of `as_json`."""
        plain = dict(content)
        if plain.pop("format", None) != FORMAT:
            raise SiloError("not-a-store", f"the store has format {content.get('format')!r}, not {FORMAT!r}")
        return cls(**{**plain, "searches": tuple(plain["searches"])})

    def require(self, search: str) -> None:
        """Refuse a search that the store was not made for."""
        if search not in self.searches:
            raise SiloError("search-missing", f"this store has no {search} search, only {', '.join(self.searches)}")


def chosen_searches(names: Iterable[str]) -> tuple[str, ...]:
    """Some of the searches, in a fixed order."""
    wanted = set(names)
    if not wanted or wanted - set(SEARCHES):
        raise SiloError("usage", f"searches are {', '.join(SEARCHES)}, not '{', '.join(sorted(wanted))}'")
    return tuple(name for name in SEARCHES if name in wanted)
