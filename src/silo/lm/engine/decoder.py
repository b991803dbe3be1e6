"""Reads texts token by token: what was read before is kept and never computed twice.

`DecodingModel` is a model directory opened for this. The decode engine reads where it knows the network, and neither
torch nor transformers are loaded; transformers reads where it does not. Whole texts are read by `network`, by the same
choice; the network of transformers (`language_model`) is loaded when it is first asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.engine.engine import Engine, Forward
from silo.lm.engine.kernel import softmax
from silo.lm.engine.weights import Storage, UnsupportedNetworkError
from silo.lm.hardware import find_device
from silo.lm.manifest import Key, key_fingerprint, model_fingerprint, open_manifest, open_tokenizer, verify_network
from silo.placement import CPU, ENGINE, NOT_ASKED, Placement, asked, asked_threads
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from silo.lm.model import LanguageModel
    from silo.lm.reading import ReadingNetwork

Tokens = NDArray[np.int64]
MakeDraft = Callable[[int], Tokens]
"""Guesses so many tokens that may come after a text; fewer or none where it has no idea."""

_NOTHING: Tokens = np.empty(0, dtype=np.int64)
_MOST_AHEAD = 64
"""Tokens that are read ahead where it is certain that they come: beyond that a pass gains little."""
_PASS_COSTS = {2: 1.2, 5: 1.7}
"""What a pass of one token and so many guessed ones costs, measured in passes of one token and rounded up."""
_LEAST_GAIN = 1.05
_FIRST_BELIEF, _NEWS = 0.5, 0.2
_TRY_AGAIN = 32
"""Where guesses did not pay, one in so many chances is taken to see whether they do now."""


def uses_engine(placement: Placement = NOT_ASKED) -> bool:
    """May the engine compute what is asked for? It computes on the processor, in float32."""
    chosen = placement.over(asked())
    device = find_device(chosen) if chosen.device == "auto" else chosen.device or CPU.device
    return device == CPU.device and chosen.dtype in ("", "auto", CPU.dtype)


class DecodingModel:
    """An opened model directory, or a network that is loaded already."""

    def __init__(
        self,
        root: Path,
        tokenizer: Tokenizer,
        manifest: dict[str, Any],
        *,
        engine: Engine | None = None,
        language_model: LanguageModel | None = None,
        threads: int | None = None,
        asked_for: Placement = NOT_ASKED,
    ) -> None:
        self.root = root
        self.tokenizer = tokenizer
        self.manifest = manifest
        self.engine = engine
        self.drafts = Drafts()
        self.kept_scores: Path | None = None
        """A folder for `network` to keep scores of rows in; set before it is first asked for."""
        self.threads = threads
        """Those of the engine at most, None for all cores."""
        self.rounded = False
        """Are the engine's weights not those of the file?"""
        self._asked_for = asked_for
        if language_model is not None:
            self.language_model = language_model

    @classmethod
    def open(
        cls,
        root: Path,
        *,
        threads: int | None = None,
        verify: bool = False,
        storage: Storage = "auto",
        placement: Placement = NOT_ASKED,
    ) -> DecodingModel:
        """Open a model directory whose files are what its manifest says.

        `threads` are those of the engine at most, without it those that the process asked for or all cores, and torch's
        for the whole process. `verify` is as for `LanguageModel.open`; `storage` says how the engine keeps weights.
        Where `placement`, or what the process asked for, is another device or format than the engine's, transformers
        decodes.
        """
        threads = threads or asked_threads() or None
        manifest = open_manifest(root)
        verify_network(root, manifest, again=verify)
        tokenizer = open_tokenizer(root)
        try:
            if not uses_engine(placement):
                raise UnsupportedNetworkError(f"it computes on cpu in float32, not on {placement.over(asked())}")
            engine = Engine.open(root, storage=storage, threads=threads)
        except UnsupportedNetworkError as reason:
            if storage != "auto":
                raise SiloError("usage", f"weights of {root} cannot be kept as {storage}: {reason}") from None
            model = cls(root, tokenizer, manifest, threads=threads, asked_for=placement)
            model.language_model  # noqa: B018  # a model that cannot be read is refused now
            return model
        if tokenizer.vocabulary > engine.shape.vocabulary:
            raise SiloError("not-a-model", f"{root}: the tokenizer has more ids than the network has embeddings")
        opened = cls(root, tokenizer, manifest, engine=engine, threads=threads)
        opened.rounded = storage in ("bf16", "fp16")
        return opened

    @classmethod
    def of(cls, model: LanguageModel | DecodingModel) -> DecodingModel:
        """A network that is loaded already is decoded by transformers: it may be another than that of its directory."""
        if isinstance(model, DecodingModel):
            return model
        return cls(model.root, model.tokenizer, model.manifest, language_model=model)

    @cached_property
    def language_model(self) -> LanguageModel:
        """The network of transformers."""
        from silo.lm.model import LanguageModel

        asked_for = self._asked_for
        opened = LanguageModel.open(self.root, threads=self.threads, device=asked_for.device, dtype=asked_for.dtype)
        return replace(opened, kept_scores=self.kept_scores)

    @cached_property
    def network(self) -> ReadingNetwork:
        """What reads whole texts: the engine where it computes the network, with weights that were not rounded."""
        return self.language_model if self.engine is None or self.rounded else self._engine_network(modest=False)

    def _engine_network(self, *, modest: bool) -> ReadingNetwork:
        from silo.lm.engine.reading import EngineNetwork

        assert self.engine is not None
        return EngineNetwork(
            self.engine, self.root, self.tokenizer, self.fingerprint, kept_scores=self.kept_scores, modest=modest
        )

    def network_of(self, mark: str, *, modest: bool = False) -> ReadingNetwork:
        """What makes keys like those of a store with that mark; torch is loaded where that is needed.

        `modest`: others read texts with this model at the same time, and wait for no pass of it.
        """
        if mark == ENGINE and self.engine is not None and not self.rounded:
            return self._engine_network(modest=modest)
        if mark == ENGINE or self.language_model.mark != mark:
            message = f"{self.root} is not open as what made the keys of the store ({mark or 'torch in float32'})"
            raise SiloError("store-mismatch", message, "leave --device and --dtype out, or make a store there")
        return self.language_model

    @property
    def placement(self) -> Placement:
        """Device and number format that decoding computes in."""
        return CPU if self.engine else self.language_model.placement

    @property
    def context(self) -> int:
        """The longest input the network was made for."""
        return self.engine.shape.context if self.engine else self.language_model.context

    @property
    def parameters(self) -> int:
        """Weights that a token is multiplied by."""
        if self.engine is not None:
            return self.engine.shape.parameters
        from silo.lm.network import parameter_count

        return parameter_count(self.language_model.network)

    def is_same(self, other: DecodingModel) -> bool:
        """Are these one network in memory?"""
        loaded = self.engine is None and other.engine is None
        return self is other or (loaded and self.language_model is other.language_model)

    @property
    def fingerprint(self) -> str:
        """Names the function this model computes."""
        return model_fingerprint(self.manifest)

    def key_fingerprint(self, key: Key) -> str:
        """Names this model and a kind of its keys."""
        return key_fingerprint(self.fingerprint, key)

    def decoder(self, key: Key = "final") -> Decoder:
        """For one text that grows."""
        if self.engine is not None:
            return EngineDecoder(self.engine, key, self.drafts)
        return TransformersDecoder(self.language_model, key)


def open_network(root: Path, mark: str | None = None, *, verify: bool = False) -> ReadingNetwork:
    """A model directory; for keys like those of that mark, or, without one, the engine wherever it may compute."""
    if mark not in (None, ENGINE):
        from silo.lm.model import LanguageModel

        place = Placement.of_mark(mark)
        return LanguageModel.open(root, verify=verify, device=place.device, dtype=place.dtype)
    opened = DecodingModel.open(root, verify=verify, placement=NOT_ASKED if mark is None else CPU)
    return opened.network if mark is None else opened.network_of(mark)


class Drafts:
    """How many tokens were guessed and how many came true, and from that how many are worth guessing.

    Texts in several threads may note theirs at once; what is lost then is a little of what was learned.
    """

    def __init__(self) -> None:
        self.guessed = 0
        self.accepted = 0
        self._belief = _FIRST_BELIEF
        self._chances = 0

    def note(self, guessed: int, accepted: int) -> None:
        """Learn what became of a draft."""
        self.guessed += guessed
        self.accepted += accepted
        self._belief += _NEWS * (accepted / guessed - self._belief)

    def worthwhile(self) -> int:
        """The number of guesses that promises most tokens in a given time; 0 where none do."""
        best = max(_PASS_COSTS, key=self._gain)
        if self._gain(best) >= _LEAST_GAIN:
            return best
        self._chances += 1
        return min(_PASS_COSTS) if self._chances % _TRY_AGAIN == 0 else 0

    def _gain(self, count: int) -> float:
        """Tokens in the time of one, if each guess comes true as often as those before."""
        return sum(self._belief**number for number in range(count + 1)) / _PASS_COSTS[count]


class DecoderOutput(NamedTuple):
    """After a text: the probability of every token, and the key of this place."""

    probabilities: NDArray[np.float64]
    key: NDArray[np.float32]

    @property
    def peak(self) -> float:
        """The probability of the likeliest token."""
        return float(self.probabilities.max())


class TransformersDecoder:
    """One text at a time. `read` takes the whole text; only what differs from the text before is computed."""

    def __init__(self, model: LanguageModel, key: Key) -> None:
        self._model = model
        self._key = key
        self._cache: Any = None
        self._ids: Tokens = np.empty(0, dtype=np.int64)
        self._last: DecoderOutput | None = None

    def read(self, ids: NDArray[Any]) -> DecoderOutput:
        """The prediction after a text of at least one token."""
        import torch

        text = _require_tokens(ids)
        if self._last is not None and np.array_equal(text, self._ids):
            return self._last
        reused = min(_shared_prefix(self._ids, text), len(text) - 1)
        self._rewind(reused)
        with torch.inference_mode():
            rest = torch.from_numpy(text[reused:]).unsqueeze(0).to(self._model.device)
            output = self._model.step(rest, self._cache, key=self._key)
        self._ids = text
        logits, keys = (tensor[0].float().cpu().numpy() for tensor in (output.logits, output.keys))
        self._last = DecoderOutput(_softmax(logits), keys)
        return self._last

    def _rewind(self, length: int) -> None:
        """Keep the first tokens of what was read."""
        if self._cache is None or not length:
            from transformers import DynamicCache  # loaded with the network; here it costs no start anything

            self._cache = DynamicCache(config=self._model.network.config)
        elif length < len(self._ids):
            self._cache.crop(length - len(self._ids))


class _Plan(NamedTuple):
    """What has to be read: tokens from a position on; results are wanted from one of them on."""

    ids: Tokens
    first: int
    wanted: int


class EngineDecoder:
    """One text at a time, in a slot of the engine.

    A *draft* is a guess of what comes after the text. It is read along with the text, and where the text then grows as
    guessed, what comes next is known already. The engine's bits do not depend on what is read together, so a draft
    changes nothing but the time.
    """

    def __init__(self, engine: Engine, key: Key, drafts: Drafts) -> None:
        self.engine = engine
        self.drafts = drafts
        self.slot = engine.claim_slot()
        self._key = key
        self._ids: Tokens = np.empty(0, dtype=np.int64)
        self._known: dict[int, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        self._last: tuple[int, DecoderOutput] | None = None
        self._guessed = 0
        weakref.finalize(self, engine.release_slot, self.slot)

    def read(self, ids: NDArray[Any], draft: MakeDraft | None = None) -> DecoderOutput:
        """The prediction after a text of at least one token."""
        found = read_together([Reading([self], [ids], draft)])[0]
        assert found is not None
        return found[0]

    def missing(self, text: Tokens) -> int:
        """How many tokens have to be read to know what comes after a text."""
        shared = _shared_prefix(self._ids, text)
        if shared == len(text) and len(text) in self._known:
            return 0
        return len(text) - min(shared, len(text) - 1)

    def forget(self) -> None:
        """Nothing of what was planned was read."""
        self._ids, self._known, self._last, self._guessed = self._ids[:0], {}, None, 0

    def plan(self, text: Tokens, missing: int, draft: MakeDraft | None, ahead: Tokens) -> _Plan:
        """What has to be read to know what comes after a text of which the last tokens are missing."""
        if self._guessed:
            shared = _shared_prefix(self._ids, text)
            self.drafts.note(self._guessed, max(0, shared + self._guessed - len(self._ids)))
        reused = len(text) - missing
        room = self.engine.shape.context - len(text)
        guesses = self._guess(draft, room) if not len(ahead) else ahead[:0]
        self._guessed = len(guesses)
        whole = np.concatenate([text, guesses, ahead[: min(room, _MOST_AHEAD)]])
        self._known, self._last = {}, None
        self._ids = whole
        return _Plan(whole[reused:], reused, len(text) - 1 - reused)

    def _guess(self, draft: MakeDraft | None, room: int) -> Tokens:
        count = min(self.drafts.worthwhile(), room) if draft is not None else 0
        return draft(count) if draft is not None and count > 0 else np.empty(0, dtype=np.int64)

    def remember(self, plan: _Plan, found: Forward, rows: Iterable[int]) -> None:
        """Keep what was read: rows of a pass, for the first token that was wanted and those after it."""
        keys = found.final if self._key == "final" else found.feed_forward
        first = plan.first + plan.wanted + 1
        self._known = {first + at: (found.logits[row], keys[row]) for at, row in enumerate(rows)}

    def output(self, length: int) -> DecoderOutput:
        """After the first tokens of what was read."""
        if self._last is None or self._last[0] != length:
            logits, key = self._known[length]
            self._last = length, DecoderOutput(_softmax(logits), key)
        return self._last[1]


Decoder = TransformersDecoder | EngineDecoder


class Reading(NamedTuple):
    """Asks what comes after some texts, each with the decoder that reads it.

    `draft` is asked for guesses where they promise to save time; `ahead` is what will be asked about next for certain.
    """

    decoders: Sequence[Decoder]
    texts: Sequence[NDArray[Any]]
    draft: MakeDraft | None = None
    ahead: Tokens = _NOTHING


def read_together(
    readings: Sequence[Reading], *, spare: int | None = None, threads: int = 0
) -> list[list[DecoderOutput] | None]:
    """What comes after the texts of every reading; those of one engine are read in one pass.

    With `spare` the pass is a short one: a token of each text and so many more, shared between the long ones. A reading
    of which only a part was read this time has no result yet. What comes later, guessed or certain, is read for whoever
    reads alone. `threads` are those of the pass, 0 for all there are.
    """
    rows = [[_require_tokens(ids) for ids in reading.texts] for reading in readings]
    alone = len(readings) == 1
    ours = [
        (decoder, text, *((reading.draft, reading.ahead) if alone else (None, _NOTHING)))
        for reading, texts in zip(readings, rows, strict=True)
        for decoder, text in zip(reading.decoders, texts, strict=True)
        if isinstance(decoder, EngineDecoder)
    ]
    missing = [decoder.missing(text) for decoder, text, *_ in ours]
    parts = missing if spare is None else _share_out(missing, spare)
    plans: dict[Engine, list[tuple[EngineDecoder, _Plan]]] = {}
    unfinished: set[Decoder] = set()
    for (decoder, text, draft, ahead), size, part in zip(ours, missing, parts, strict=True):
        if part < size:
            unfinished.add(decoder)
            text, draft, ahead = text[: len(text) - size + part], None, _NOTHING
        if part:
            plans.setdefault(decoder.engine, []).append((decoder, decoder.plan(text, part, draft, ahead)))
    try:
        for planned in plans.values():
            _run_plans(planned, threads)
    except BaseException:
        for decoder, *_ in ours:
            decoder.forget()
        raise
    return [
        _outputs(reading, texts) if unfinished.isdisjoint(reading.decoders) else None
        for reading, texts in zip(readings, rows, strict=True)
    ]


def _outputs(reading: Reading, texts: Sequence[Tokens]) -> list[DecoderOutput]:
    return [
        decoder.output(len(text)) if isinstance(decoder, EngineDecoder) else decoder.read(text)
        for decoder, text in zip(reading.decoders, texts, strict=True)
    ]


def _share_out(sizes: Sequence[int], spare: int) -> list[int]:
    """How much of each is taken: one at least, and `spare` more in all; what short ones leave is the others'."""
    parts, left = [0] * len(sizes), len(sizes) + spare
    for served, at in enumerate(sorted(range(len(sizes)), key=lambda at: sizes[at])):
        parts[at] = min(sizes[at], left // (len(sizes) - served))
        left -= parts[at]
    return parts


def _run_plans(plans: Sequence[tuple[EngineDecoder, _Plan]], threads: int) -> None:
    """Read what is planned in one pass. Lists, because most plans are a single token."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    cuts = [0]
    for decoder, plan in plans:
        begun, count = len(ids), len(plan.ids)
        ids += plan.ids.tolist()
        positions += range(plan.first, plan.first + count)
        slots += [decoder.slot] * count
        wanted += range(begun + plan.wanted, begun + count)
        cuts.append(len(wanted))
    found = plans[0][0].engine.forward(ids, positions, slots, wanted=wanted, threads=threads)
    for (decoder, plan), first, last in zip(plans, cuts[:-1], cuts[1:], strict=True):
        decoder.remember(plan, found, range(first, last))


def _require_tokens(ids: NDArray[Any]) -> Tokens:
    text = np.asarray(ids, dtype=np.int64)
    if not len(text):
        raise ValueError("a text without tokens has no next one")
    return text


def _shared_prefix(one: Tokens, other: Tokens) -> int:
    """How many first tokens two texts share."""
    length = min(len(one), len(other))
    if one[:length].tobytes() == other[:length].tobytes():
        return length
    return int(np.flatnonzero(one[:length] != other[:length])[0])


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    probabilities = np.empty(len(logits))
    softmax(np.ascontiguousarray(logits), probabilities)
    return probabilities
