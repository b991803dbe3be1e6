"""A language model: a causal network and its tokenizer; `forward` gives logits and the state the LM head reads.

`states` gives the keys of a kNN-LM too: `final`, the state after the final norm, as in the code of the paper (Min et
al., 2023), or `ffn`, the input of the last feed-forward network, as in the original (Khandelwal et al., 2020).

What a model directory holds, and what may be asked of it without torch, is in `silo.lm.manifest`. transformers is
imported when a network is opened or saved: it takes twice as long as torch.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from silo.errors import SiloError
from silo.files import (
    commit,
    disk_errors,
    locked_directory,
    remove_tree,
    sync_file,
    write_json,
    write_manifest,
)
from silo.lm.hardware import Item, Result, core_count, find_device, map_on_cores
from silo.lm.hooks import capture_inputs, hook_last_feed_forward
from silo.lm.manifest import (
    FORMAT,
    Key,
    begin_text,
    file_checksums,
    growing_place,
    model_fingerprint,
    open_manifest,
    open_tokenizer,
    replace_model,
    verify_network,
)
from silo.lm.reading import Row, RowScores
from silo.lm.tokenizer import CONFIG, FILE, TEMPLATE, tokenizer_config
from silo.lm.windows import padded_length
from silo.placement import Placement, asked, asked_threads
from silo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NO_LIMIT = "1000GB"
_FEW_TOKENS = 64
_CHUNK_LOGITS, _ALIGN = 1 << 22, 64
_USUAL_CONTEXT = 2048
_MOST_MODULES = 1024
"""Layers or experts that a network may have beyond one for each of its weights: some share them."""
_MOST_PER_BYTE = 2
"""Weights that a byte of a file may hold: four bits each."""
_MOST_MISSING = 10_000_000
"""Weights beyond that which are still found missing one by one, with their names."""


@dataclass(frozen=True, slots=True)
class Output:
    """For every position: scores of the next token, and the state after the final norm that they come from."""

    logits: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True)
class States:
    """For every position: the state after the final norm, and the key, which may be the same tensor."""

    hidden: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True)
class StepOutput:
    """After the last token of each text: scores of the next one, and the key."""

    logits: Tensor
    keys: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LanguageModel:
    """An opened model directory, ready for inference."""

    root: Path
    network: Any
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    plain_head: bool
    """True where logits are the head applied to the final state and nothing more; some networks cap or scale them."""
    feed_forward_calls: int
    """How often a pass runs the last feed-forward network: more than once where layers share it, 0 if it has none."""
    batch_tokens: int = 2048
    """Tokens that `window_keys` is best given at once."""
    kept_scores: Path | None = None
    """A folder in which scores of rows are kept for whoever reads the same text again; see `score_rows`."""

    @classmethod
    def open(
        cls, root: Path, *, threads: int | None = None, device: str = "", dtype: str = "", verify: bool = False
    ) -> LanguageModel:
        """Open a model directory whose files are what its manifest says.

        `threads` sets torch's threads for the whole process. `device` and `dtype` are as for `Placement`; where they
        are left out, what the process asked for. `verify` reads every byte of the weights even if they were compared
        before and the file system says that they have not changed since.
        """
        tokenizer = open_tokenizer(root)
        manifest = open_manifest(root)
        verify_network(root, manifest, again=verify)
        if threads := threads or asked_threads():
            torch.set_num_threads(threads)
        chosen = Placement(device, dtype).over(asked())
        place = find_device(chosen)
        network = load_network(root, dtype=_number_format(chosen, place)).to(place).eval()
        if tokenizer.vocabulary > network.config.get_text_config().vocab_size:
            raise SiloError("not-a-model", f"{root}: the tokenizer has more ids than the network has embeddings")
        plain_head = has_plain_head(network, tokenizer.begin)
        feed_forward_calls = hook_last_feed_forward(network, tokenizer.begin)
        return cls(root, network, tokenizer, manifest, plain_head, feed_forward_calls)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Output:
        """Logits [batch, length, vocabulary] and hidden states [batch, length, hidden size] of token ids."""
        if self.plain_head:
            hidden = self._last_state(ids, attention_mask)
            return Output(self.network.get_output_embeddings()(hidden), hidden)
        answer = self.network(input_ids=ids, attention_mask=attention_mask, use_cache=False, output_hidden_states=True)
        return Output(answer.logits, answer.hidden_states[-1])

    def hidden(self, ids: Tensor) -> Tensor:
        """The hidden states of `forward`, without the cost of logits where the network allows it."""
        return self._last_state(ids, None) if self.plain_head else self.forward(ids).hidden

    def states(self, ids: Tensor, key: Key = "final") -> States:
        """Hidden states and keys [batch, length, hidden size] of token ids, in one pass."""
        with capture_inputs() as inputs:
            hidden = self.hidden(ids)
        return States(hidden, hidden if key == "final" else self._feed_forward_key(key, inputs, hidden.shape))

    def keys(self, ids: Tensor, key: Key = "final") -> Tensor:
        """The keys of `states`; nothing is computed beyond them."""
        if key == "final":
            return self.hidden(ids)
        with capture_inputs(self.feed_forward_calls) as inputs:
            self.hidden(ids)
        return self._feed_forward_key(key, inputs, torch.Size((*ids.shape, self.hidden_size)))

    def step(self, ids: Tensor, cache: Any, key: Key = "final") -> StepOutput:
        """The last logits and key of tokens that follow what the cache holds; the cache grows by them."""
        with capture_inputs() as inputs:
            if self.plain_head:
                hidden = self._last_state(ids, None, cache)
                logits = self.network.get_output_embeddings()(hidden[:, -1])
            else:
                answer = self.network(
                    input_ids=ids, past_key_values=cache, use_cache=True, output_hidden_states=True, logits_to_keep=1
                )
                hidden, logits = answer.hidden_states[-1], answer.logits[:, -1]
        keys = hidden if key == "final" else self._feed_forward_key(key, inputs, hidden.shape)
        return StepOutput(logits, keys[:, -1])

    @torch.inference_mode()
    def read_rows(self, rows: Sequence[Row], length: int, key: Key | None) -> list[RowScores]:
        """Score rows that are padded to one length.

        The head runs on the states that scored tokens need, a cache-sized part each. Parts are cut at fixed places, so
        that neither the other rows nor the number of threads show in a result.
        """
        ids = self.stack([row.tokens for row in rows], length)
        states, keys, head = self._states_and_head(ids, key)
        size = max(_ALIGN, _CHUNK_LOGITS // self.vocabulary // _ALIGN * _ALIGN)
        scores = []
        for at, row in enumerate(rows):
            first, end = row.first - 1, len(row.tokens) - 1
            begin = first // _ALIGN * _ALIGN
            parts = [
                _token_scores(
                    head(states[at, start : min(start + size, -(-end // _ALIGN) * _ALIGN)]).float(),
                    ids[at, start + 1 :],
                )
                for start in range(begin, end, size)
            ]
            logs, peaks = (
                torch.cat(part)[first - begin : end - begin].cpu().double().numpy() for part in zip(*parts, strict=True)
            )
            scores.append(RowScores(logs, np.exp(peaks), keys[at, first:end].float().cpu().numpy()))
        return scores

    def _states_and_head(self, ids: Tensor, key: Key | None) -> tuple[Tensor, Tensor, Callable[..., Tensor]]:
        """What is left to do per position: the head, or nothing where a network does more than apply it."""
        if self.plain_head:
            states = self.states(ids, key=key or "final")
            return states.hidden, states.keys, self.network.get_output_embeddings()
        if key in (None, "final"):
            output = self.forward(ids)
            return output.logits, output.hidden, torch.nn.Identity()
        return self.forward(ids).logits, self.keys(ids, key), torch.nn.Identity()

    @torch.inference_mode()
    def predict_ends(
        self, rows: Sequence[tuple[NDArray[np.integer[Any]], int]], length: int, key: Key | None = None
    ) -> list[tuple[NDArray[np.float64], NDArray[np.float32]]]:
        """For each row, given as tokens and a number of last positions: log-probabilities after these, and keys.

        Rows are padded to one length. The head runs row by row, so that other rows do not show in a result.
        """
        ids = self.stack([tokens for tokens, _ in rows], length)
        head = self.network.get_output_embeddings() if self.plain_head else torch.nn.Identity()
        if self.plain_head:
            states = self.states(ids, key or "final")
            inputs, keys = states.hidden, states.keys
        else:
            output = self.forward(ids)
            inputs, keys = output.logits, output.hidden if key in (None, "final") else self.keys(ids, key or "final")
        found = []
        for at, (tokens, count) in enumerate(rows):
            last = slice(len(tokens) - count, len(tokens))
            logs = head(inputs[at, last]).float().cpu().double().log_softmax(1).numpy()
            found.append((logs, keys[at, last].float().cpu().numpy()))
        return found

    @torch.inference_mode()
    def window_keys(self, windows: Sequence[NDArray[np.integer[Any]]], key: Key) -> list[NDArray[np.float32]]:
        """The keys of all places of some windows, which have one padded length; see `DocumentEncoder`."""
        length = padded_length(max(map(len, windows)), self.context)
        keys: NDArray[np.float32] = self.keys(self.stack(windows, length), key).float().cpu().numpy()
        return [rows[: len(window)] for rows, window in zip(keys, windows, strict=True)]

    @staticmethod
    def multiply(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
        """The matrix product on the cores of this thread; numpy's takes all there are."""
        product: NDArray[np.float32] = torch.mm(torch.from_numpy(left), torch.from_numpy(right)).numpy()
        return product

    @property
    def cores(self) -> int:
        """How many cores this thread may use."""
        return core_count()

    def map_on_cores(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """The results of all items; see `hardware.map_on_cores`."""
        return map_on_cores(work, items, device=self.device.type)

    def require_finite(self) -> None:
        """Refuse a network with a weight that is no number, or whose keys are none."""
        tokens = np.arange(min(_FEW_TOKENS, self.context)) % self.tokenizer.vocabulary
        (keys,) = self.window_keys([tokens], "final")
        weights = (bool(weight.isfinite().all()) for weight in self.network.parameters())
        if not np.isfinite(keys).all() or not all(weights):
            hint = "train or import the model again: its training may have diverged"
            raise SiloError("not-a-model", f"{self.root} has keys or weights that are not finite", hint)

    @torch.inference_mode()
    def choose_key(self) -> Key:
        """The kind of key that found better neighbours in all domains it was measured on, if the network offers it."""
        try:
            self.keys(torch.tensor([[self.tokenizer.begin]], device=self.device), "ffn")
        except SiloError:
            return "final"
        return "ffn"

    @torch.inference_mode()
    def token_similarities(self, words: Sequence[NDArray[np.integer[Any]]]) -> NDArray[np.float32]:
        """The cosine of each word's mean output embedding to that of every token [words, vocabulary], all centred."""
        table = self.network.get_output_embeddings().weight.float()
        table = torch.nn.functional.normalize(table - table.mean(0), dim=1)
        means = torch.stack([table[torch.from_numpy(word.astype(np.int64)).to(self.device)].mean(0) for word in words])
        similarities: NDArray[np.float32] = (torch.nn.functional.normalize(means, dim=1) @ table.T).cpu().numpy()
        return similarities

    def stack(self, rows: Sequence[NDArray[np.integer[Any]]], length: int) -> Tensor:
        """Rows of tokens as an input of the network, on its device, padded at the right to one length."""
        ids = torch.zeros((len(rows), length), dtype=torch.long)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = torch.from_numpy(row.astype(np.int64, copy=False))
        return ids.to(self.device)

    def _feed_forward_key(self, key: Key, inputs: list[Tensor], shape: torch.Size) -> Tensor:
        """What the last feed-forward network was given."""
        if key not in get_args(Key):
            raise ValueError(f"keys are {', '.join(get_args(Key))}, not {key!r}")
        if not inputs or inputs[-1].shape != shape:
            kind = self.network.config.model_type
            raise SiloError("usage", f"the key {key} is not offered for the architecture {kind}", "use the key final")
        return inputs[-1]

    def _last_state(self, ids: Tensor, attention_mask: Tensor | None, cache: Any = None) -> Tensor:
        answer = _base_model(self.network)(
            input_ids=ids, attention_mask=attention_mask, past_key_values=cache, use_cache=cache is not None
        )
        state: Tensor = answer.last_hidden_state
        return state

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        device: torch.device = self.network.device
        return device

    @property
    def placement(self) -> Placement:
        """Device and number format of the network."""
        return Placement(self.device.type, str(self.network.dtype).removeprefix("torch."))

    @property
    def mark(self) -> str:
        """What a store remembers of keys that it made."""
        return self.placement.mark

    @property
    def hidden_size(self) -> int:
        """The width of the state the head reads."""
        return int(self.network.get_output_embeddings().weight.shape[1])

    @property
    def vocabulary(self) -> int:
        """The width of the logits; never less than the tokenizer's ids, more where rows are padded."""
        return int(self.network.get_output_embeddings().weight.shape[0])

    @property
    def context(self) -> int:
        """The longest input the network was made for; a usual length where the network names none (ALiBi)."""
        length = getattr(self.network.config.get_text_config(), "max_position_embeddings", None)
        return int(length or _USUAL_CONTEXT)

    @property
    def fingerprint(self) -> str:
        """Names the function this model computes: SHA-256 over the checksums of config, weights and tokenizer."""
        return model_fingerprint(self.manifest)


def _token_scores(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens, as far as there are some, and of the likeliest ones."""
    logits = logits[: len(tokens)]
    total = logits.logsumexp(1)
    return logits.gather(1, tokens[: len(logits)].unsqueeze(1)).squeeze(1) - total, logits.amax(1) - total


def _number_format(chosen: Placement, device: str) -> torch.dtype | None:
    """The format that weights are loaded in; None for the one they are kept in."""
    if chosen.dtype in ("", "auto"):
        return torch.float32 if device == "cpu" else None
    dtype: torch.dtype = getattr(torch, chosen.dtype)
    return dtype


def load_network(root: Path, *, dtype: torch.dtype | None = None) -> Any:
    """The causal network of a Hugging Face directory, whole or not at all; its own number format unless one is given.

    No code from the directory runs and nothing is fetched.
    """
    from transformers import AutoModelForCausalLM

    _require_plausible_config(root)
    with _hide_progress_bars():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                root,
                dtype=dtype or "auto",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # the library raises many kinds for damaged or foreign files
            raise SiloError("not-a-model", f"{root}: {_first_line(error)}") from error
    network, report = loaded
    lacking = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if lacking:
        raise SiloError("not-a-model", f"{root}: {len(lacking)} weights are missing or misshapen, such as {lacking[0]}")
    return network


def _require_plausible_config(root: Path) -> None:
    """Refuse a configuration that promises far more than the files of weights can hold, before memory is taken for it.

    transformers makes modules one by one without end, and fills weights of a wrong shape before it complains of them.
    """
    files = list(root.glob("*.safetensors"))
    try:
        repeated = max(_repeats(json.loads((root / "config.json").read_bytes())), default=0)
        if repeated > _MOST_MODULES + sum(map(_count_tensors, files)):
            raise ValueError(f"config.json promises {repeated} layers, blocks or experts")
        weights = _count_promised(root)
        if weights > _MOST_PER_BYTE * sum(file.stat().st_size for file in files) + _MOST_MISSING:
            raise ValueError(f"config.json promises {weights} weights, which the files cannot hold")
    except Exception as error:  # the libraries raise many kinds, and JSON may be nested without end
        raise SiloError("not-a-model", f"{root}: {_first_line(error)}") from error


def _count_tensors(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, "pt") as weights:
        return len(weights.keys())


def _count_promised(root: Path) -> int:
    """The weights of the network that a configuration describes, made without memory for them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(root, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        skeleton: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    return sum(weight.numel() for weight in skeleton.parameters())


def _repeats(content: Any) -> Iterator[int]:
    """Every number in a configuration that says how often a part of the network is repeated."""
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(value, dict):
            yield from _repeats(value)
        elif isinstance(value, int | float) and any(word in name for word in ("layer", "block", "expert", "depth")):
            yield math.ceil(value)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


@contextmanager
def _hide_progress_bars() -> Iterator[None]:
    """Keep the library's progress bars off the user's terminal."""
    from transformers.utils import logging as transformers_logging

    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _base_model(network: Any) -> Any:
    """The network without its head: its output is the state after the final norm."""
    return getattr(network, network.base_model_prefix)


@torch.inference_mode()
def has_plain_head(network: Any, begin: int) -> bool:
    """Try two tokens: is the head applied to the body's output all there is to the logits?"""
    ids = torch.tensor([[begin, begin]], device=network.device)
    try:
        hidden = _base_model(network)(input_ids=ids, use_cache=False).last_hidden_state
        logits = network.get_output_embeddings()(hidden)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(logits, network(input_ids=ids, use_cache=False).logits)


def save_model(
    network: PreTrainedModel,
    tokenizer_file: Path,
    out: Path,
    manifest: Mapping[str, Any],
    *,
    extra: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> str:
    """Write a model directory, whole or not at all, and return its manifest's fingerprint.

    `manifest` says where the model comes from; `extra` are more files to lie, and be checked, beside the weights. With
    `replace` a model that is there stays until this one is whole.
    """
    if out.exists() and not replace:
        raise SiloError("out-exists", f"{out} is already there")
    folder = growing_place(out)
    remove_tree(folder)
    folder.mkdir(parents=True)
    with disk_errors(folder), _hide_progress_bars():
        network.save_pretrained(folder, max_shard_size=_NO_LIMIT)
        _copy_tokenizer(tokenizer_file, folder)
        for name, content in (extra or {}).items():
            (folder / name).write_bytes(content)
    files = file_checksums(folder)
    for name in files:
        sync_file(folder / name)
    mark = write_manifest(folder, {**manifest, "format": FORMAT, "files": files})
    if out.exists():
        with locked_directory(folder):
            replace_model(out)
    else:
        commit(folder, out)
    return mark


def _copy_tokenizer(file: Path, folder: Path) -> None:
    """The tokenizer, its settings and its chat template; settings are made where there are none."""
    if not file.is_file():
        raise SiloError("input-missing", f"there is no tokenizer at {file}")
    shutil.copyfile(file, folder / FILE)
    beside = file.with_name(CONFIG)
    if beside.is_file():
        shutil.copyfile(beside, folder / CONFIG)
    else:
        write_json(folder / CONFIG, tokenizer_config(begin_text(folder)))
    template = file.with_name(TEMPLATE)
    if template.is_file():
        shutil.copyfile(template, folder / TEMPLATE)
