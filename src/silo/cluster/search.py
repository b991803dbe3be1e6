"""A store searched on a Ray cluster: its buckets are placed on searchers, every part on two nodes, and answers merged.

Only an answer that names the state it was asked for counts, so that late, stopped or newly started searchers can slow
an answer down and never make it wrong. A searcher that is slow is passed over for the other one of its part, after a
delay that doubles from one time to the next; one that is dead is started again by Ray on a node that is alive, and
reads the manifest before it answers.

An erasure is accepted when all searchers have acknowledged the state that hides its documents. Who does not in time is
passed over until it has. If another one of its part is there, it is also ended, so that it is started again and lets go
of what was erased: nobody holds up an erasure for ever, and no request that is under way is lost for it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from silo import __version__
from silo.cluster.connect import connect, import_ray
from silo.errors import SiloError
from silo.files import fingerprint
from silo.store.parts.searcher import Answer, Question, Searcher, State
from silo.store.parts.view import DividedView
from silo.store.view import View

REPLICAS = 2
"""Searchers of each part, on different nodes, where there are as many nodes."""
NAMESPACE = "silo"
_PREFIX = "silo-search"
_HEDGE_SECONDS, _HEDGE_SECONDS_PER_KEY = 0.25, 0.01
"""After so long, with time for every key, a question is put to the other searcher too; then after twice as long."""
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.005, 0.5
"""Between questions to searchers that are dead or elsewhere, doubling."""
_ANSWER_SECONDS = 120.0
"""An answer that is not there after so long is given up."""
_LEFT_SECONDS = 10.0
"""So long searchers may be at other states than they are asked for: then it is this process that is behind."""
ACKNOWLEDGE_SECONDS = 5.0
_PLACE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Names the searchers of a store, so that other processes of the cluster find them."""

    name: str
    parts: int
    replicas: int

    def actor(self, part: int, replica: int) -> str:
        """The name of a searcher."""
        return f"{self.group(part)}-{replica}.{self.replicas}"

    def group(self, part: int) -> str:
        """The name of the places of a part's searchers."""
        return f"{_PREFIX}-{self.name}-{part}.{self.parts}"

    @property
    def actors(self) -> set[str]:
        """The names of all searchers."""
        return {self.actor(part, replica) for part in range(self.parts) for replica in range(self.replicas)}

    @classmethod
    def known(cls, name: str) -> list[tuple[Placement, set[str]]]:
        """The placements of a name that have searchers on the cluster, each with the names of those that are there."""
        import_ray()
        from ray.util import list_named_actors

        found: dict[Placement, set[str]] = {}
        for actor in list_named_actors(all_namespaces=True):
            if actor["namespace"] == NAMESPACE and actor["name"].startswith(f"{_PREFIX}-{name}-"):
                parts, replicas = (int(number.partition(".")[2]) for number in actor["name"].split("-")[-2:])
                found.setdefault(cls(name, parts, replicas), set()).add(actor["name"])
        return list(found.items())


@dataclass(eq=False)
class _Replica:
    """One searcher of a part: what it was asked and has not answered, and whether it is asked anything at all."""

    handle: Any
    asked: set[Any] = field(default_factory=set)
    in_service: bool = True
    acknowledgement: Any = None


@dataclass(eq=False)
class _Turn:
    """When a part is asked next, and whom it was last."""

    next: float
    hedge: float
    pause: float = _PAUSE_SECONDS
    last: _Replica | None = None
    refused_since: float = 0.0


class ClusterSearch:
    """The searchers of one store, as one process asks them; `Store.searchers` takes it."""

    def __init__(self, placement: Placement, replicas: list[list[Any]], groups: Sequence[Any] = ()) -> None:
        self.placement = placement
        self._ray = import_ray()
        self._name = secrets.token_hex(8)
        self._replicas = [[_Replica(handle) for handle in part] for part in replicas]
        self._groups = groups
        self._guard = threading.RLock()
        self._views: dict[View, DividedView] = {}
        self._latest: State | None = None
        self._round = 0
        self._failure = ""

    @classmethod
    def place(
        cls, root: Path, *, parts: int = 0, replicas: int = REPLICAS, cpus: float = 1.0, lasting: str = ""
    ) -> ClusterSearch:
        """Start searchers for a store, which every node finds under this path; without `parts`, one for each node.

        With a name, `lasting`, they outlive this process: `place_lasting` finds them, `end_lasting` ends them.
        """
        ray = import_ray()
        from ray.util.placement_group import placement_group

        nodes = sum(1 for node in ray.nodes() if node["Alive"])
        placement = Placement(lasting or secrets.token_hex(8), parts or nodes, min(replicas, nodes))
        room = [{"CPU": cpus}] * placement.replicas
        life = "detached" if lasting else None
        groups = [
            placement_group(room, strategy="STRICT_SPREAD", name=placement.group(part), lifetime=life)
            for part in range(placement.parts)
        ]
        started = [_start(root, placement, part, group, life) for part, group in enumerate(groups)]
        placed = cls(placement, started, groups)
        placed._require_ready()
        return placed

    @classmethod
    def find(cls, placement: Placement) -> ClusterSearch:
        """Searchers that another process of the cluster has placed."""
        ray = import_ray()
        return cls(
            placement,
            [
                [
                    ray.get_actor(placement.actor(part, replica), namespace=NAMESPACE)
                    for replica in range(placement.replicas)
                ]
                for part in range(placement.parts)
            ],
        )

    def _require_ready(self) -> None:
        """Wait until every searcher has opened its part."""
        held = [replica.handle.hold.remote(self._name, frozenset()) for replica in self._every()]
        try:
            self._ray.get(held, timeout=_PLACE_SECONDS)
        except self._ray.exceptions.RayError as error:
            self.close()
            message = f"{len(held)} searchers could not be started on the cluster: {_last_line(error)}"
            hint = "the cluster needs a free processor for each; the store must be at the same path on every node"
            raise SiloError("cluster-unavailable", message, hint) from None

    def _every(self) -> Iterator[_Replica]:
        return (replica for part in self._replicas for replica in part)

    def close(self) -> None:
        """End the searchers that this process has placed."""
        if not self._groups:
            return
        from ray.util.placement_group import remove_placement_group

        for replica in self._every():
            self._ray.kill(replica.handle)
        for group in self._groups:
            remove_placement_group(group)

    # states

    def view(self, view: View) -> View:
        """A view of the same state whose searches the searchers answer."""
        with self._guard:
            known = self._views.get(view)
            if known is None:
                known = self._views[view] = DividedView(view, len(self._replicas), self.ask)
                self._latest = known.state
                view.on_close = self._release
                self._hold()
        return known

    def _release(self, view: View) -> None:
        with self._guard:
            self._views.pop(view, None)
            self._hold()

    def _hold(self) -> dict[Any, _Replica]:
        """Tell all which states this process uses; those they do not hear of they may let go of."""
        return {self._acknowledge(replica): replica for replica in self._every()}

    def settle(self, view: View) -> None:
        """Have all searchers acknowledge the state of a view; who does not in time is taken out of service.

        Nobody waits for those that are out of service: they come back when they have acknowledged one that is used.
        """
        self.view(view)
        end = time.monotonic() + ACKNOWLEDGE_SECONDS
        with self._guard:
            wanted = self._latest = State.of(view)
            waiting = {reference: replica for reference, replica in self._hold().items() if replica.in_service}
        while waiting and (left := end - time.monotonic()) > 0:
            ready, _ = self._ray.wait(list(waiting), num_returns=1, timeout=left)
            for reference in ready:
                replica = waiting.pop(reference)
                state = self._result(reference)
                replica.in_service = state == wanted
                if state is not None and state != wanted:  # it has not seen the manifest yet
                    time.sleep(_PAUSE_SECONDS)
                    waiting[self._acknowledge(replica)] = replica
        for reference, replica in waiting.items():
            replica.in_service, replica.acknowledgement = False, reference
        for replica in waiting.values():
            if any(replica in part and any(other.in_service for other in part) for part in self._replicas):
                self._ray.kill(replica.handle, no_restart=False)

    def _acknowledge(self, replica: _Replica) -> Any:
        """Tell one, and have it say which state it is at."""
        with self._guard:
            states = frozenset(view.state for view in self._views.values())
        return replica.handle.hold.remote(self._name, states)

    # questions

    def ask(self, state: State, question: Question, parts: Sequence[int]) -> list[Any]:
        """What each of some parts answers for a state."""
        begin = time.monotonic()
        hedge = _HEDGE_SECONDS + _HEDGE_SECONDS_PER_KEY * question.keys
        waiting = {part: _Turn(begin, hedge) for part in parts}
        answers: dict[int, Answer] = {}
        asked: dict[Any, tuple[int, _Replica]] = {}
        while waiting:
            self._ask_due(state, question, waiting, asked)
            pause = max(0.0, min(turn.next for turn in waiting.values()) - time.monotonic())
            if not asked:
                time.sleep(pause)
                continue
            together = len(asked) if len(asked) == len(waiting) else 1
            for reference in self._ray.wait(list(asked), num_returns=together, timeout=pause)[0]:
                part, replica = asked.pop(reference)
                answer = self._take_answer(reference, replica)
                if part not in waiting:
                    continue
                if answer is not None and answer.state == state:
                    answers[part] = answer
                    del waiting[part]
                else:
                    self._put_off(waiting[part], part, refused=answer is not None)
            if waiting and time.monotonic() - begin > _ANSWER_SECONDS:
                raise SiloError("cluster-unavailable", f"no searcher of part {min(waiting)} answers{self._failure}")
        for answer in answers.values():
            if answer.error is not None:
                raise answer.error
        return [answers[part].value for part in parts]

    def _ask_due(
        self, state: State, question: Question, waiting: dict[int, _Turn], asked: dict[Any, tuple[int, _Replica]]
    ) -> None:
        """Put the question to every part whose turn it is."""
        now = time.monotonic()
        for part, turn in waiting.items():
            if turn.next <= now:
                with self._guard:
                    replica = self._choose(part, turn.last)
                    reference = replica.handle.ask.remote(state, question)
                    replica.asked.add(reference)
                asked[reference] = part, replica
                turn.last, turn.next, turn.hedge = replica, now + turn.hedge, 2 * turn.hedge

    def _choose(self, part: int, last: _Replica | None) -> _Replica:
        """The searcher that has the least to do; another than the last, and one in service, if there is one."""
        self._round += 1
        replicas = self._replicas[part]
        for replica in replicas:
            self._look_at(replica)
        turned = replicas[self._round % len(replicas) :] + replicas[: self._round % len(replicas)]
        return min(turned, key=lambda replica: (not replica.in_service, replica is last, len(replica.asked)))

    def _look_at(self, replica: _Replica) -> None:
        """Forget questions that were answered when nobody waited any more; take back who has acknowledged."""
        if replica.asked:
            replica.asked -= set(self._ray.wait(list(replica.asked), num_returns=len(replica.asked), timeout=0)[0])
        if replica.in_service:
            return
        if replica.acknowledgement is None:
            replica.acknowledgement = self._acknowledge(replica)
        elif self._ray.wait([replica.acknowledgement], timeout=0)[0]:
            used = {self._latest, *(view.state for view in self._views.values())}
            replica.in_service = self._result(replica.acknowledgement) in used
            replica.acknowledgement = None

    def _take_answer(self, reference: Any, replica: _Replica) -> Answer | None:
        """None from one that is dead: it is asked again once it has acknowledged a state that is used."""
        answer: Answer | None = self._result(reference)
        with self._guard:
            replica.asked.discard(reference)
            replica.in_service = replica.in_service and answer is not None
        return answer

    def _put_off(self, turn: _Turn, part: int, *, refused: bool) -> None:
        """Ask another one after a pause; nobody is asked for ever for a state that is gone."""
        now = time.monotonic()
        if refused:
            turn.refused_since = turn.refused_since or now
            if now - turn.refused_since > _LEFT_SECONDS:
                message = f"the searchers of part {part} have left the state that this request began with"
                raise SiloError("cluster-unavailable", message, "ask again")
        turn.next, turn.pause = now + turn.pause, min(2 * turn.pause, _LONGEST_PAUSE)

    def _result(self, reference: Any) -> Any:
        """What a call gave; None if whoever was called is not there any more, or could not."""
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._failure = f": {_last_line(error)}"
            return None


def _last_line(error: Exception) -> str:
    """What an error of Ray says in the end; before it stands where it happened."""
    return str(error).strip().rpartition("\n")[2][:300]


@contextmanager
def placing(address: str, *, parts: int = 0) -> Iterator[Callable[[Path], ClusterSearch]]:
    """Places searchers of stores, by path, on the cluster at an address; they are there for as long as this lasts."""
    placed: dict[Path, ClusterSearch] = {}

    def place(root: Path) -> ClusterSearch:
        key = root.absolute()
        if key not in placed:
            placed[key] = ClusterSearch.place(key, parts=parts)
        return placed[key]

    with connect(address):
        try:
            yield place
        finally:
            for search in placed.values():
                search.close()


def place_lasting(application: str, root: Path, parts: int) -> ClusterSearch:
    """Searchers of a store for several processes of an application, which come and go: they are found or started.

    Some of a set are none: without a part, answers would lack what it holds.
    """
    name = _lasting_name(application, root)
    for placement, there in Placement.known(name):
        if there == placement.actors and placement.parts == (parts or placement.parts):
            return ClusterSearch.find(placement)
    end_lasting(application, [root])
    return ClusterSearch.place(root.absolute(), parts=parts, lasting=name)


def end_lasting(application: str, roots: Iterable[Path]) -> None:
    """End the searchers of an application, however many of them are there."""
    ray = import_ray()
    from ray.util.placement_group import placement_group_table

    for root in roots:
        name = _lasting_name(application, root)
        for _, there in Placement.known(name):
            for actor in there:
                with suppress(ValueError):  # it has ended meanwhile
                    ray.kill(ray.get_actor(actor, namespace=NAMESPACE))
        for group in placement_group_table().values():
            if group["name"].startswith(f"{_PREFIX}-{name}-") and group["state"] != "REMOVED":
                _remove_group(group["name"])


def _remove_group(name: str) -> None:
    from ray.util.placement_group import get_placement_group, remove_placement_group

    with suppress(ValueError):
        remove_placement_group(get_placement_group(name))


def _lasting_name(application: str, root: Path) -> str:
    """Of the searchers of a store; those of another version of silo are not the ones that are looked for."""
    return fingerprint([application, str(root.absolute()), __version__])[:16]


def _start(root: Path, placement: Placement, part: int, group: Any, life: str | None) -> list[Any]:
    """Start the searchers of one part, each in its place of a placement group: Ray keeps those on different nodes."""
    ray = import_ray()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    handles = []
    for replica, room in enumerate(group.bundle_specs):
        options = {
            "num_cpus": room["CPU"],
            "max_restarts": -1,
            "name": placement.actor(part, replica),
            "namespace": NAMESPACE,
            "lifetime": life,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=replica),
        }
        started = ray.remote(Searcher).options(**options)
        handles.append(started.remote(str(root.absolute()), part, placement.parts, max(1, int(room["CPU"]))))
    return handles
