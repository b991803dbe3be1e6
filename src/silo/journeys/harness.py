"""Tasks of EleutherAI's lm-evaluation-harness (`lm_eval`) on a model with stores, in this process.

Numbers are those of generation, token by token: the same to the bit as through `silo serve` and the harness's own
client `local-completions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from silo.errors import SiloError, did_you_mean
from silo.inference.predict import Predictor
from silo.inference.session import Session
from silo.progress import Advance

_MAX_TOKENS = 256
_PASSED_ON = {"temperature", "top_p", "top_k", "seed"}
_WITHOUT_EFFECT = {"do_sample", "until", "max_gen_toks", "max_tokens"}
"""Options of a generation task that are read otherwise: `do_sample` says no more than a temperature does."""


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """Which tasks, by the names of the harness or of files in the `include` folders; 0 is all documents of a task."""

    tasks: tuple[str, ...]
    include: tuple[Path, ...] = ()
    limit: int = 0
    fewshot: int | None = None


class HarnessModel(LM):  # type: ignore[misc]
    """A model with stores as the harness asks it."""

    def __init__(self, predictor: Predictor, advance: Advance = lambda *_: None) -> None:
        super().__init__()
        self._session = Session(predictor)
        self._advance = advance

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """How likely each continuation is after its context, and whether greedy decoding would write it."""
        found = (self._session.loglikelihood([request.args])[0] for request in self._each(requests, "choices"))
        return [(item.logprob, item.is_greedy) for item in found]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """How likely whole texts are; long ones are read in the model's windows."""
        texts = (request.args[0] for request in self._each(requests, "texts"))
        return [self._session.loglikelihood([("", text)])[0].logprob for text in texts]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continuations, greedy unless the task says otherwise."""
        return [self._generate(*request.args) for request in self._each(requests, "answers")]

    def _generate(self, context: str, given: dict[str, Any]) -> str:
        if unknown := given.keys() - _PASSED_ON - _WITHOUT_EFFECT:
            raise SiloError("usage", f"the option {min(unknown)} of a generation task has no effect here")
        until = given.get("until") or []
        return self._session.answer(
            context,
            max_tokens=int(given.get("max_tokens", given.get("max_gen_toks", _MAX_TOKENS))),
            stop=[until] if isinstance(until, str) else until,
            **{name: given[name] for name in _PASSED_ON & given.keys()},
        ).text

    def _each(self, requests: Sequence[Any], stage: str) -> Iterable[Any]:
        for done, request in enumerate(requests, start=1):
            yield request
            self._advance(stage, done, len(requests))


def evaluate_harness(
    predictor: Predictor, options: HarnessOptions, manager: TaskManager, *, advance: Advance = lambda *_: None
) -> dict[str, Any]:
    """What the harness says of every task: its metrics with their standard errors."""
    found = simple_evaluate(
        model=HarnessModel(predictor, advance),
        tasks=list(options.tasks),
        task_manager=manager,
        limit=options.limit or None,
        num_fewshot=options.fewshot,
        log_samples=False,
    )
    kept = ("results", "versions", "n-shot", "n-samples", "higher_is_better")
    return {name: found[name] for name in kept if found and name in found}


def find_tasks(options: HarnessOptions) -> TaskManager:
    """The tasks of the folders, and those that come with the harness where others are named."""
    folders = [str(folder) for folder in options.include]
    own = TaskManager(include_path=folders, include_defaults=False)
    every = own if set(options.tasks) <= set(own.all_tasks) else TaskManager(include_path=folders)
    for name in options.tasks:
        if name not in every.all_tasks:
            hint = did_you_mean(name, every.all_tasks) or "--include names a folder of task files"
            raise SiloError("input-missing", f"the harness knows no task '{name}'", hint)
    return every
