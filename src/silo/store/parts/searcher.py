"""One part of a store, searched in a process of its own. Every answer names the state that it was computed in.

A state is a generation and the documents that are being erased in it. A question names the state it is for. A searcher
that is at another one reads the manifest first; if it is still at another one then, its answer says so and nothing
else, and whoever asked drops it. So it does not matter how late a searcher learns of an erasure: one that was stopped,
cut off or started anew can answer only for the state that it is at, which nobody asks for any more.

A searcher holds the reader lock of every generation that it has open, as any reader does. It goes on answering for the
state before as long as somebody who began there holds it, and no longer than `HOLD_SECONDS`, then lets go of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from silo.errors import SiloError
from silo.files import file_stamp
from silo.search.knn.codec import Codec
from silo.search.knn.index import SearchTables
from silo.store.erasure.pending import PendingErasure
from silo.store.erasure.verify import self_test
from silo.store.manifest import read_generation
from silo.store.partition import part_of
from silo.store.paths import StorePaths
from silo.store.policy import Policy
from silo.store.view import AllowedCounts, Continuations, Passage, View, open_view

HOLD_SECONDS = 20.0
"""How long a state is answered for after it was left; less than an erasure waits for readers."""
_WATCH_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class State:
    """A generation by its fingerprint, and the documents that are being erased in it."""

    generation: str
    dead: frozenset[bytes]

    @classmethod
    def of(cls, view: View) -> State:
        """The state that a view shows."""
        return cls(view.generation.fingerprint, view.dead)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """A search by its name, under a policy; `counts` are those of the whole store, where the search needs them."""

    search: str
    policy: Policy
    arguments: tuple[Any, ...]
    counts: AllowedCounts | None = None

    @property
    def keys(self) -> int:
        """How many keys it is about; 0 if it is about no keys."""
        return len(self.arguments[0]) if self.search == "search" else 0


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a search found in a state, or the error it ended with; for another state than was asked for, nothing."""

    state: State
    value: Any = None
    error: Exception | None = None


class Searcher:
    """Searches the buckets of a store that fall into one of so many equal ranges of document ids.

    They are opened when it is first told or asked something: one that cannot read them now may later.
    """

    def __init__(self, root: str, part: int, parts: int, threads: int = 0) -> None:
        self._paths, self._part, self._parts, self._threads = StorePaths(Path(root)), part, parts, threads
        self._guard = threading.RLock()
        self._views: dict[State, View] = {}
        self._left: dict[State, float] = {}
        self._held: dict[str, frozenset[State]] = {}
        self._watched = str(self._paths.manifest), str(self._paths.pending)
        self._state: State
        self._tables: SearchTables | None = None
        threading.Thread(target=self._watch, name="silo-searcher-watch", daemon=True).start()

    def ask(self, state: State, question: Question) -> Answer:
        """The answer to a question that is for a state."""
        with self._guard:
            if state not in self._views:
                self._take_latest()
            view = self._views.get(state)
            if view is None:
                return Answer(self._state)
            try:
                return Answer(state, self._answer(view, question))
            except (SiloError, ValueError) as error:
                return Answer(state, error=error)

    def hold(self, name: str, states: frozenset[State]) -> State:
        """Take the latest state, which is given, and besides it keep only those that somebody of a name still uses."""
        with self._guard:
            self._held[name] = states
            self._take_latest()
            self._let_go()
            return self._state

    def _answer(self, view: View, question: Question) -> Any:
        """What a view finds. Arrays come read-only, for which every kernel would be compiled anew: they are copied."""
        if question.counts is not None:
            view.use_counts(question.policy, question.counts)
        arguments: list[Any] = [np.array(item) if isinstance(item, np.ndarray) else item for item in question.arguments]
        if question.search == "search":
            assert self._tables is not None
            return _nearest(view, self._tables, question.policy, *arguments, threads=self._threads)
        if question.search == "count":
            return view.count_allowed(question.policy, self._tables)
        return _SEARCHES[question.search](view, question.policy, *arguments)

    def _take_latest(self) -> None:
        """Open what the manifest names, unless it is open; a generation that ends meanwhile is left at once."""
        while True:
            generation = read_generation(self._paths)
            pending = PendingErasure.read(self._paths.pending)
            state = State(generation.fingerprint, pending.hidden if pending else frozenset())
            prefixes = [prefix for prefix in generation.buckets if part_of(prefix, self._parts) == self._part]
            view = self._views.get(state)
            try:
                before = self._views[self._state] if self._views else None
                opened = view or open_view(self._paths, generation, state.dead, before, prefixes=prefixes)
            except SiloError:
                if read_generation(self._paths).fingerprint == generation.fingerprint:
                    raise
                continue
            if read_generation(self._paths).fingerprint == generation.fingerprint:
                break
            if view is None:
                opened.close()
        codec = self._tables.codec.fingerprint if self._tables else None
        if "knn" in generation.config.searches and codec != generation.config.codec:  # the store was made anew here
            self._tables = _tested_tables(opened, self._paths)
        if self._views and state != self._state:
            self._left[self._state] = time.monotonic()
        self._views[state], self._state = opened, state
        self._left.pop(state, None)

    def _let_go(self) -> None:
        """Close what nobody holds any more, and what was left too long ago."""
        held = {state for states in self._held.values() for state in states}
        for state, since in list(self._left.items()):
            if state not in held or time.monotonic() - since > HOLD_SECONDS:
                del self._left[state]
                self._views.pop(state).close()

    def _watch(self) -> None:
        """Leave an old generation soon even if nobody asks anything: an erasure waits for that."""
        seen: Any = None
        while True:
            time.sleep(_WATCH_SECONDS)
            with self._guard, suppress(SiloError, OSError):  # who asks next is told
                stamps = tuple(map(file_stamp, self._watched))
                if stamps != seen:
                    self._take_latest()
                seen = stamps
                self._let_go()


def _tested_tables(view: View, paths: StorePaths) -> SearchTables:
    """What token search needs of the codec, after the search was tested on these buckets."""
    tables = SearchTables(Codec.open(paths.codec))
    self_test(view, tables)
    return tables


def _nearest(
    view: View, tables: SearchTables, policy: Policy, keys: Any, k: int, probes: int, *, threads: int
) -> tuple[Any, ...]:
    """Rows, positions, values and distances; narrow, for most of what an answer costs is its way."""
    found = view.search(tables, keys, k, policy, probes=probes, threads=threads)
    narrow = (array.astype(np.int32) for array in (found.rows, found.positions, found.values))
    return *narrow, found.distances


def _continuations(view: View, policy: Policy, prefix: Any, limits: Mapping[str, int]) -> Continuations:
    return replace(view.continuations(prefix, policy, **limits), ids=np.empty(0, dtype="V16"))


def _passages(view: View, policy: Policy, text: str, k: int, words: Any, frequencies: Any) -> list[Passage]:
    view.use_frequencies(words, frequencies, policy)
    return view.passages(text, k, policy)


_SEARCHES: Mapping[str, Callable[..., Any]] = {
    "continuations": _continuations,
    "longest": lambda view, policy, prefixes: view.longest_of(prefixes, policy),
    "longest_match": lambda view, policy, ids: view.longest_match(ids, policy),
    "levels": lambda view, policy, ids, start, orders: view.levels(ids, start, policy, orders=orders),
    "followers": lambda view, policy, contexts: view.followers_of(contexts, policy),
    "holders": lambda view, policy, *arguments: view.weigh_holders(*arguments, policy),
    "count_terms": lambda view, policy, words: view.count_terms(words, policy),
    "passages": _passages,
}
"""What is asked of a part besides its nearest rows and counts, by name: of a view, a policy and the arguments."""
