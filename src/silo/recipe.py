"""TOML -> frozen dataclasses. Unknown keys are refused with the nearest name, values are checked by type."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from silo.errors import SiloError, nearest_names

T = TypeVar("T")

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one input; beyond them a record is quarantined or a file refused.

    `max_parse_seconds` (of processor time) and `max_parse_mb` are what reading one document file may take.
    """

    max_record_bytes: int = 64 * MIB
    max_ratio: int = 1000
    max_depth: int = 64
    max_field_chars: int = 4096
    max_parse_seconds: int = 60
    max_parse_mb: int = 1024


@dataclass(frozen=True, slots=True)
class SourceRecipe:
    """Where documents come from. `kind` names the reader; the other fields fill what the records leave open.

    `license` is the curator's own statement for every document of the source; `deny` takes rights away
    (`train`, `store`, `quote`, `index`); `signals` is a folder with robots.txt, tdmrep.json or rsl.xml.
    """

    kind: str
    paths: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    name: str = ""
    domain: str = ""
    owner: str = ""
    license: str = ""
    deny: tuple[str, ...] = ()
    signals: str = ""
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class DedupRecipe:
    """Near-duplicate removal: a document whose share of already seen word n-grams reaches `threshold` is dropped."""

    enabled: bool = True
    ngram: int = 13
    threshold: float = 0.8
    false_positive_rate: float = 1e-3
    bloom_mb: int = 256


@dataclass(frozen=True, slots=True)
class DecontaminationRecipe:
    """Removal of documents that give away evaluation text.

    A document is dropped if `threshold` of its n-grams are evaluation n-grams, or if it holds `coverage` of the
    identifying n-grams of one evaluation document. N-grams of more than `common` evaluation documents identify none.
    """

    files: tuple[str, ...] = ()
    ngram: int = 13
    threshold: float = 0.5
    coverage: float = 0.5
    common: int = 8


@dataclass(frozen=True, slots=True)
class PiiRecipe:
    """Masking of personal data: kinds to mask, and the domains it applies to (all, if none is named)."""

    mask: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    max_masked_share: float = 0.5

    def kinds(self, domain: str) -> tuple[str, ...]:
        """What to mask in a domain."""
        return self.mask if not self.domains or domain in self.domains else ()


@dataclass(frozen=True, slots=True)
class WeightsRecipe:
    """Domain re-weighting as in the paper: domains below `below` of the tokens count `factor` times."""

    below: float = 0.05
    factor: float = 3.0


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """Everything `silo corpus build` needs to know. `groups` gathers domains under the names a report should use."""

    source: tuple[SourceRecipe, ...]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tokenizer: str = ""
    min_chars: int = 1
    shard_mb: int = 32
    workers: int = 0
    limits: Limits = field(default_factory=Limits)
    dedup: DedupRecipe = field(default_factory=DedupRecipe)
    decontaminate: DecontaminationRecipe = field(default_factory=DecontaminationRecipe)
    pii: PiiRecipe = field(default_factory=PiiRecipe)
    weights: WeightsRecipe = field(default_factory=WeightsRecipe)


@dataclass(frozen=True, slots=True)
class TrainRecipe:
    """Everything `silo lm train` needs to know.

    `corpus` and `validation` are relative to the recipe. `reference` trains on text that may not be trained on, to
    measure what that would give; such a model is marked for ever. A `tokenizer` is learned if none is named,
    from `tokenizer_tiers` if models of several tiers are to share one, else from `tiers`. `tokenizer_provenance` states
    what a named one was learned from, if it is neither that of a model trained here nor plain bytes. With `shard`,
    the processes of a run divide weights and optimiser among them; one process has nothing to divide. Domains share the
    tokens by size, raised to the power `balance`: at 0 each gets the same, whatever its size; those of `exclude` get
    none. `optimiser` is `adamw`, or `muon` for the matrices inside the layers; `dtype` is what matrices are multiplied
    in, `auto` being bfloat16 where the processor has it.
    """

    corpus: str
    tiers: tuple[str, ...] = ("pd", "sw")
    reference: bool = False
    preset: str = "demo"
    tokenizer: str = ""
    tokenizer_tiers: tuple[str, ...] = ()
    tokenizer_provenance: str = ""
    vocabulary: int = 0
    context: int = 0
    max_tokens: int = 5_000_000
    batch_tokens: int = 8192
    optimiser: str = "adamw"
    micro_batch: int = 8
    learning_rate: float = 1e-3
    final_rate: float = 0.1
    warmup_share: float = 0.05
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    reweigh: bool = True
    balance: float = 1.0
    exclude: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    validation_tokens: int = 100_000
    evaluate_every: int = 500_000
    patience: int = 0
    checkpoint_every: int = 500_000
    gradient_checkpointing: bool = False
    dtype: str = "auto"
    threads: int = 0
    shard: bool = False
    seed: int = 0


def load_recipe(path: Path, kind: type[T]) -> T:
    """Read a TOML file as a recipe of the given kind."""
    return parse_recipe(read_toml(path), kind, where=path.name)


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise SiloError("recipe-missing", f"there is no recipe at {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SiloError("recipe-syntax", f"{path}: {error}") from None


def parse_recipe(content: Mapping[str, Any], kind: type[T], *, where: str) -> T:
    """Turn a mapping into a frozen dataclass, strictly."""
    hints = typing.get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    for key in content:
        if key not in known:
            close = nearest_names(key, known, most=1)
            advice = f"; did you mean '{close[0]}'?" if close else f"; known keys: {', '.join(sorted(known))}"
            raise SiloError("recipe-key", f"{where}: unknown key '{key}'{advice}")
    for name, item in known.items():
        if name not in content and item.default is MISSING and item.default_factory is MISSING:
            raise SiloError("recipe-key", f"{where}: the key '{name}' is missing")
    values = {key: _convert(value, hints[key], f"{where}: {key}") for key, value in content.items()}
    return kind(**values)


def _convert(value: Any, hint: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise SiloError("recipe-value", f"{where} must be a table")
        return parse_recipe(value, hint, where=where)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
        return _convert(value, hint, where)
    if typing.get_origin(hint) is dict:
        if not isinstance(value, Mapping):
            raise SiloError("recipe-value", f"{where} must be a table")
        return {key: _convert(item, typing.get_args(hint)[1], f"{where}.{key}") for key, item in value.items()}
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise SiloError("recipe-value", f"{where} must be a list")
        return tuple(_convert(item, typing.get_args(hint)[0], f"{where}[{at}]") for at, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise SiloError("recipe-value", f"{where} must be {_KINDS[hint]}, not {value!r}")
    return value


_KINDS: dict[Any, str] = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
