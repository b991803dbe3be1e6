"""The decode engine: `forward` reads tokens of any number of texts and gives what comes after those that are asked for.

A text lives in a *slot*: a row of pages that hold its keys and values. Pages are taken as a text grows and given back
with its slot, so that memory follows what was read and not the longest context. To rewind a text is to read on from an
earlier position.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from threading import Lock, RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from silo.errors import SiloError
from silo.lm.engine.kernel import (
    BLOCK_BYTES,
    BLOCKS,
    FLOAT32,
    PAGE,
    PAIR,
    PANEL,
    QUERY_ROWS,
    Cache,
    Float32s,
    Int64s,
    Network,
    Outputs,
    Tokens,
    Workspace,
    multiply_panels,
    pack_blocks,
    pack_rows,
    run_pass,
    score_tokens,
    softmax,
)
from silo.lm.engine.weights import Shape, Storage, UnsupportedNetworkError, load_network, read_shape
from silo.lm.manifest import Key

_PASS_ROWS = 192
"""Tokens of one pass at most; more are read in several, which gives the same bits."""
_TEXT_ROWS = 96
"""Tokens of a whole text that are read at once: as fast as more, and their logits stay small."""
_WORK_PER_THREAD = 2_000_000
"""Multiplications of a pass for each of its threads at least: waking one takes about as long."""
_FEW_ROWS = 8
"""Passes of no more tokens are timed, to see whether threads pay: see `_Pace`."""
_FIRST_REST, _LONGEST_REST, _SLOW_PASSES = 8, 4096, 3
"""Passes in one thread after so many slow ones in a row."""
_MOST_IDLE = 4
"""Workspaces that are kept for passes to come."""
_MOST_FREE_BYTES = 64 << 20
"""Of pages that are kept for texts to come; others are memory again."""
_ALL_ARRIVED = 1 << 62
_CONFIG = "config.json"


@dataclass(frozen=True, slots=True, eq=False)
class Forward:
    """For each token that was asked for: scores of the next one, and two kinds of key."""

    logits: Float32s
    final: Float32s
    feed_forward: Float32s


def why_unsupported(root: Path) -> str:
    """Why the engine does not compute the network of a model directory; empty where it does, or nothing is there."""
    if not (root / _CONFIG).is_file():
        return ""
    try:
        read_shape(_read_config(root))
    except UnsupportedNetworkError as reason:
        return str(reason)
    return ""


def _read_config(root: Path) -> dict[str, Any]:
    try:
        content = json.loads((root / _CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SiloError("not-a-model", f"{root}: {_CONFIG} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def is_compiled() -> bool:
    """Was the kernel compiled on this machine before? If not, that comes with the first pass and takes a while."""
    if run_pass.signatures:
        return True
    try:
        compiled: Any = run_pass
        return bool(compiled._cache._cache_file._load_index())
    except (AttributeError, OSError):  # numba's own, which it may change: nothing but a message hangs on it
        return True


def warm() -> None:
    """Compile the kernel, by a pass of a network of one layer without weights."""
    shape = Shape(
        PAIR, 1, 1, 1, PAIR, PAIR, PAIR, 1, 1e-5, False, True, False, False, False, np.ones(PAIR // 2, np.float32)
    )
    matrix, bias = np.zeros((1, 2, PAIR, 4 * PANEL), dtype=np.uint8), np.zeros((1, PAIR), dtype=np.float32)
    wide, wide_bias = np.zeros((1, 6, PAIR, 4 * PANEL), dtype=np.uint8), np.zeros((1, 3 * PAIR), dtype=np.float32)
    norms = np.zeros((3, PAIR), dtype=np.float32)
    matrices, biases = (
        (wide, matrix, wide[:, :4].copy(), matrix),
        (wide_bias, bias, wide_bias[:, : 2 * PAIR].copy(), bias),
    )
    network = Network(FLOAT32, matrix[0], matrix[0], *matrices, *biases, norms, norms, 1, 1, PAIR, PAIR, False, 1e-5)
    engine = Engine(network, shape, "float32", 1)
    engine.forward([0], [0], [engine.claim_slot()])
    softmax(np.zeros(1, dtype=np.float32), np.zeros(1))
    score_tokens(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1))
    multiply(np.zeros((1, 1), dtype=np.float32), np.zeros((1, 1), dtype=np.float32))
    for kind in (np.uint32, np.uint16):
        pack_rows(np.zeros((1, 1), dtype=kind), np.zeros((1, 1, PANEL), dtype=kind), 0, 0, 1)
    block, none = np.zeros((1, BLOCK_BYTES), dtype=np.uint8), np.zeros((0, 1), dtype=np.float32)
    pack_blocks(none, none, none, block, block.view(np.float32), 0, 0, 1)


def multiply(left: Float32s, right: Float32s) -> Float32s:
    """A matrix product on one core, each sum from the first input to the last."""
    panels = np.zeros((-(-right.shape[1] // PAIR) * 2, len(right), PANEL), dtype=np.float32)
    pack_rows(right.T.view(np.uint32), panels.view(np.uint32), 0, 0, 1)
    out = np.empty((len(left), len(panels) * PANEL), dtype=np.float32)
    multiply_panels(np.ascontiguousarray(left), panels, out)
    return out[:, : right.shape[1]]


def core_count() -> int:
    """Threads that this process may use: its cores, or fewer where OMP_NUM_THREADS says so, as for torch."""
    cores, limit = len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(limit)) if limit.isdigit() and int(limit) else cores


class _Pace:
    """Whether more threads than one pay for short passes, which only time can tell.

    Threads of a pass wait for each other after every stage. Where other programs want the processors too, one of them
    is often not running, and a pass takes several times as long as in one thread. So passes that were slower than one
    thread are followed by some in one thread, each time by more. The bits are the same either way.
    """

    def __init__(self) -> None:
        self._alone = 0.0
        self._passes_alone, self._rest, self._slow = 1, _FIRST_REST, 0

    def choose(self, threads: int) -> int:
        """Threads of the next pass, at most so many."""
        return 1 if self._passes_alone else threads

    def note(self, threads: int, seconds: float) -> None:
        """Remember how long a pass took."""
        if threads == 1:
            self._alone = seconds
            self._passes_alone = max(0, self._passes_alone - 1)
        elif seconds <= self._alone:
            self._rest, self._slow = max(self._rest // 2, _FIRST_REST), 0
        else:
            self._slow += 1
            if self._slow == _SLOW_PASSES:
                self._passes_alone, self._rest, self._slow = self._rest, min(2 * self._rest, _LONGEST_REST), 0


class Engine:
    """A network, its cache and its threads. Any thread may call it, for slots that are its own.

    Passes of several threads run one after the other. Passes of one thread run beside each other and beside those.
    """

    def __init__(self, network: Network, shape: Shape, storage: str, threads: int) -> None:
        self.shape = shape
        self.storage = storage
        self._network = network
        self._threads = threads
        self._lock = RLock()  # the collector may give a slot back at any instant, in a thread that has the lock
        self._together = Lock()
        self._helpers: tuple[int, ThreadPoolExecutor] | None = None
        self._paces = [_Pace() for _ in range(_FEW_ROWS + 1)]
        self._slots: dict[int, list[NDArray[np.float32]]] = {}
        self._free_pages: list[NDArray[np.float32]] = []
        self._table: Int64s = np.zeros((0, 0), dtype=np.int64)
        self._idle: list[Workspace] = []
        self._cosines: Float32s = np.empty((0, len(shape.frequencies)), dtype=np.float32)
        self._sines = self._cosines

    @classmethod
    def open(cls, root: Path, *, storage: Storage = "auto", threads: int | None = None) -> Engine:
        """Load the network of a model directory; UnsupportedNetworkError where it is none of the engine's."""
        shape = read_shape(_read_config(root))
        network, chosen = load_network(root, shape, storage)
        return cls(network, shape, chosen, threads or core_count())

    @property
    def threads(self) -> int:
        """Threads of a pass at most."""
        return self._threads

    @property
    def weight_bytes(self) -> int:
        """What a pass reads of the network."""
        matrices = (self._network.attention_in, self._network.attention_out, self._network.feed_in)
        return sum(matrix.nbytes for matrix in (*matrices, self._network.feed_out, self._network.head))

    def claim_slot(self) -> int:
        """A slot for one text."""
        with self._lock:
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots)
            self._slots[slot] = []
            return slot

    def release_slot(self, slot: int) -> None:
        """Give a slot back, and its pages."""
        with self._lock:
            self._free_pages += self._slots.pop(slot)
            if self._free_pages:
                del self._free_pages[max(1, _MOST_FREE_BYTES // self._free_pages[0].nbytes) :]

    def forward(
        self,
        ids: Sequence[int] | NDArray[Any],
        positions: Any,
        slots: Any,
        *,
        wanted: Any = None,
        threads: int = 0,
    ) -> Forward:
        """Read tokens at positions of texts; what is asked for are all of them, or the rows that `wanted` names.

        A text's tokens stand in its order. What its slot held from the first of the positions on is forgotten.
        `threads` is how many may be used, all that there are with 0.
        """
        width, vocabulary = self.shape.width, -(-self.shape.vocabulary // PAIR) * PAIR
        given = np.array([ids, positions, slots], dtype=np.int64)
        rows = np.arange(given.shape[1]) if wanted is None else np.array(wanted, dtype=np.int64)
        outputs = self._read(given, rows, (vocabulary, width, width), threads)
        return Forward(outputs.logits[:, : self.shape.vocabulary], outputs.final, outputs.feed_forward)

    def keys(self, texts: Sequence[NDArray[Any]], key: Key, *, threads: int = 0) -> Float32s:
        """The keys of all places of some texts, one text after the other; nothing is computed beyond them."""
        slots = [self.claim_slot() for _ in texts]
        try:
            lengths = [len(text) for text in texts]
            positions = np.concatenate([np.arange(length) for length in lengths])
            given = np.stack([np.concatenate(texts).astype(np.int64), positions, np.repeat(slots, lengths)])
            sizes = (0, self.shape.width, 0) if key == "final" else (0, 0, self.shape.width)
            outputs = self._read(given, np.arange(given.shape[1]), sizes, threads)
        finally:
            for slot in slots:
                self.release_slot(slot)
        return outputs.final if key == "final" else outputs.feed_forward

    def read_text(self, ids: NDArray[Any], first: int, *, threads: int = 0) -> Iterator[tuple[int, Forward]]:
        """What comes after the tokens of a text from `first` on: some at a time, each with the place of its first."""
        slot = self.claim_slot()
        try:
            for start in range(0, len(ids), _TEXT_ROWS):
                part = ids[start : start + _TEXT_ROWS]
                positions, wanted = range(start, start + len(part)), range(max(0, first - start), len(part))
                found = self.forward(part, positions, [slot] * len(part), wanted=wanted, threads=threads)
                yield max(first, start), found
        finally:
            self.release_slot(slot)

    def _read(self, given: Int64s, rows: Int64s, sizes: tuple[int, int, int], threads: int) -> Outputs:
        """Read tokens, given as ids, positions and slots; outputs of these sizes for some rows of them."""
        count = given.shape[1]
        reach = self._check(given.tolist(), rows.tolist())
        outputs = Outputs(*(np.empty((len(rows), size), dtype=np.float32) for size in sizes))
        most = min(threads or self._threads, self._threads)
        cache = self._make_room(reach)
        if count <= _PASS_ROWS:
            self._run(Tokens(given[0], given[1], given[2], rows), cache, outputs, max(reach.values()), most)
        else:
            for first in range(0, count, _PASS_ROWS):
                low, high = np.searchsorted(rows, [first, first + _PASS_ROWS])
                here = given[:, first : first + _PASS_ROWS]
                part = Tokens(here[0], here[1], here[2], rows[low:high] - first)
                parts = Outputs(*(array[low:high] for array in outputs))
                self._run(part, cache, parts, int(part.positions.max()), most)
        return outputs

    def _check(self, given: list[list[int]], wanted: list[int]) -> dict[int, int]:
        """Refuse what the loops would read beyond their arrays for; the last position of each slot."""
        ids, positions, slots = given
        if not ids or not all(map(lt, [-1, *wanted], [*wanted, len(ids)])):
            raise ValueError("a pass needs tokens, and the rows that are asked for in their order")
        if min(ids) < 0 or max(ids) >= self.shape.vocabulary:
            raise ValueError(f"a token is outside of the vocabulary of {self.shape.vocabulary}")
        reach: dict[int, int] = {}
        for slot, position in zip(slots, positions, strict=True):
            reach[slot] = max(reach.get(slot, 0), position)
        if min(positions) < 0 or not reach.keys() <= self._slots.keys():
            raise ValueError("a position is negative, or a slot was not claimed")
        return reach

    def _run(self, tokens: Tokens, cache: Cache, outputs: Outputs, last: int, most: int) -> None:
        rows = len(tokens.ids)
        threads = max(1, min(most, rows * self.shape.parameters // _WORK_PER_THREAD))
        pace = self._paces[rows] if threads > 1 and rows <= _FEW_ROWS else None
        threads = pace.choose(threads) if pace else threads
        with self._together if threads > 1 else nullcontext():
            scratch, begin = self._take_scratch(rows, last + 1), time.perf_counter()
            self._run_in(threads, tuple(map(tuple, (self._network, cache, tokens, scratch, outputs))))
            if pace:
                pace.note(threads, time.perf_counter() - begin)
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(scratch)  # not after an error: other threads of the pass may still write to it

    def _run_in(self, threads: int, arguments: tuple[Any, ...]) -> None:
        compiled: Any = run_pass
        meeting = np.zeros(1, dtype=np.int64)
        others: list[Future[None]] = []
        try:
            for rank in range(1, threads):
                others.append(self._pool.submit(lambda at: compiled(*arguments, meeting, at, threads), rank))
            compiled(*arguments, meeting, 0, threads)
        except BaseException:
            meeting[0] = _ALL_ARRIVED  # nobody waits for a thread that was interrupted before it began
            wait(others)  # they still write to pages that whoever asked may give back
            raise
        for other in others:
            other.result()

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """Threads of this engine alone: a pass needs all of its threads at once, and would wait for another's."""
        if self._helpers is None or self._helpers[0] != os.getpid():  # threads do not live on in a forked process
            self._helpers = os.getpid(), ThreadPoolExecutor(self._threads - 1, thread_name_prefix="silo-engine")
        return self._helpers[1]

    def _make_room(self, reach: dict[int, int]) -> Cache:
        """Pages for every position up to the last of each slot, their addresses in the table, and their angles."""
        with self._lock:
            for slot, last in reach.items():
                pages = self._slots[slot]
                needed = last // PAGE + 1
                if len(pages) < needed or slot >= len(self._table):
                    pages += [self._take_page() for _ in range(needed - len(pages))]
                    self._write_addresses(slot, pages)
            self._extend_angles(max(reach.values()) + 1)
            return Cache(self._table, self._cosines, self._sines)

    def _take_page(self) -> NDArray[np.float32]:
        if self._free_pages:
            return self._free_pages.pop()
        shape = self.shape
        padded = -(-shape.head_width // PAIR) * PAIR
        return np.zeros((shape.layers, shape.key_heads, 2, PAGE * padded), dtype=np.float32)

    def _write_addresses(self, slot: int, pages: list[NDArray[np.float32]]) -> None:
        slots, width = self._table.shape
        if slot >= slots or len(pages) > width:
            table = np.zeros((max(slot + 1, slots), max(len(pages), width)), dtype=np.int64)
            table[:slots, :width] = self._table
            self._table = table
        self._table[slot, : len(pages)] = [page.ctypes.data for page in pages]

    def _extend_angles(self, length: int) -> None:
        if length > len(self._cosines):
            rounded = -(-length // PAGE) * PAGE
            angles = np.arange(rounded, dtype=np.float32)[:, None] * self.shape.frequencies
            self._cosines = np.cos(angles.astype(np.float64)).astype(np.float32)
            self._sines = np.sin(angles.astype(np.float64)).astype(np.float32)

    def _take_scratch(self, rows: int, positions: int) -> Workspace:
        """Room for a pass alone; it goes back to those that are idle."""
        try:
            old = self._idle.pop()
        except IndexError:
            old = None
        if old is not None and len(old.stream) >= rows and old.scores.shape[2] >= positions:
            return old
        rows = rows if rows <= 1 else -(-rows // 8) * 8
        rows, positions = max(rows, len(old.stream) if old else 0), -(-positions // PAGE) * PAGE
        shape, network = self.shape, self._network
        head = -(-shape.head_width // PAIR) * PAIR
        sizes = (
            -(-shape.width // PAIR) * PAIR,
            shape.width,
            network.attention_in_bias.shape[1],
            shape.heads * shape.head_width,
            network.feed_in_bias.shape[1],
            shape.feed_width,
        )
        queries = max(QUERY_ROWS, shape.heads // shape.key_heads)
        longest = max(sizes[1], sizes[3], sizes[5]) if network.stored == BLOCKS else 0
        rooms: list[tuple[int, ...]] = [(rows, size) for size in sizes]
        rooms += [(self._threads, queries, size) for size in (head, head, positions)]
        return Workspace(*(np.empty(room, np.float32) for room in (*rooms, (self._threads, PAIR * longest))))
