"""Progress bars on a terminal: one for each stage, with what is done, how long it took and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from silo.progress import Advance, Estimate, duration


class _Left(ProgressColumn):
    """How long the rest of a stage takes."""

    def render(self, task: Task) -> Text:
        estimate: Estimate | None = task.fields["estimate"]
        if estimate is None:
            return Text(f"{task.completed:,.0f} so far")
        left = estimate.left(time.monotonic())
        return Text("measuring" if left is None else "" if task.finished else f"{duration(left)} left")


@contextmanager
def draw_bars(console: Console, visible: Callable[[str], str]) -> Iterator[Advance]:
    """A function that draws; a stage without a total shows how much is done of it."""
    columns = (
        TextColumn("{task.description:<12}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        _Left(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}
        estimates: dict[str, Estimate] = {}

        def advance(stage: str, done: int, total: int) -> None:
            name, _, note = stage.partition("\t")
            now = time.monotonic()
            if name not in tasks:
                tasks[name] = bars.add_task(visible(name), total=None, estimate=None, note="")
            if total:
                estimate = estimates.setdefault(name, Estimate(done, total, now))
                estimate.note(done, total, now)
            elif name in estimates:
                return  # somebody else knows the total
            bars.update(
                tasks[name],
                completed=done,
                total=total or None,
                estimate=estimates.get(name),
                note=visible(note),
            )

        yield advance
