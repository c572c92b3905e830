"""Who is told how far a study is: nobody, or a bar in the terminal. Tests and notebooks hand in their own."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Protocol

from dissensus.experiments.runner import Outcome


class Progress(Protocol):
    """Told about every cell; a study calls it from one thread only."""

    def begin(self, cells: int, steps: int) -> None:
        """Before anything runs: how many cells, and how many steps all of them have together."""
        ...

    def advance(self, steps: int) -> None:
        """So many steps more are done."""
        ...

    def finish(self, outcome: Outcome) -> None:
        """A cell ended."""
        ...


class Silent:
    """Says nothing."""

    def begin(self, cells: int, steps: int) -> None:
        """Nothing."""

    def advance(self, steps: int) -> None:
        """Nothing."""

    def finish(self, outcome: Outcome) -> None:
        """Nothing."""


class Bar:
    """On standard error, the runs done, the share of steps and the time that remains: a bar, or lines in a log.

    Where standard error is no terminal, every run that ends is a line, and nothing is written over.
    """

    def __init__(self, title: str = "training") -> None:
        self.title = title
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %  {task.fields[cells]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, cells: int, steps: int) -> None:
        """Shows the empty bar."""
        self._cells, self._done = cells, 0
        self._task = self._bar.add_task(self.title, total=steps, cells=f"0/{cells} runs")

    def advance(self, steps: int) -> None:
        """Moves the bar."""
        self._bar.advance(self._task, steps)

    def finish(self, outcome: Outcome) -> None:
        """Counts the run; what failed is named at once, above the bar."""
        self._done += 1
        count = f"{self._done}/{self._cells} runs"
        self._bar.update(self._task, cells=count)
        said = f"{outcome.arm}, seed {outcome.seed}: {outcome.status}"
        said += f": {outcome.error}" if outcome.error else ""
        if self._bar.disable:
            said = f"{self.title}: {count}, {self._left()}{said}"
        elif outcome.status == "ok":
            return
        self._bar.console.print(said, markup=False, highlight=False, soft_wrap=True)

    def _left(self) -> str:
        task = self._bar.tasks[0]
        if not task.total or not task.completed or task.elapsed is None:
            return ""
        seconds = round(task.elapsed * (task.total / task.completed - 1))
        return f"{task.percentage:.0f} %, {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left: "
