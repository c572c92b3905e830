"""Worker processes of a benchmark as seen by whoever started them: they wait for commands, which come through pipes.

They end when told to, when whoever started them is gone, or when a message does not come in time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Self


class Workers:
    """So many processes of `serve`, which is called with the arguments of each and its end of a pipe."""

    patience = 150.0
    """Seconds after which the answer of a process is given up: longer than a message is waited for."""
    grace = 5.0
    """Seconds that the processes have to leave by themselves."""

    def __init__(self, context: Any, serve: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
        self.size = len(arguments)
        pairs = [context.Pipe() for _ in arguments]
        self._lines = [ours for ours, _ in pairs]
        self._ends = [theirs for _, theirs in pairs]
        self.processes = [
            context.Process(target=serve, args=(*own, theirs), daemon=True)
            for own, theirs in zip(arguments, self._ends, strict=True)
        ]

    def __enter__(self) -> Self:
        try:
            for process in self.processes:
                process.start()
            for end in self._ends:
                end.close()
            self._meet()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _meet(self) -> None:
        """Waits until all are there."""
        self._answers("start")

    def _ask(self, *command: Any) -> list[Any]:
        for line in self._lines:
            with contextlib.suppress(OSError):  # whoever is gone is named below, where its answer is missed
                line.send(command)
        return self._answers(str(command[0]))

    def _answers(self, what: str, lines: Sequence[Any] | None = None) -> list[Any]:
        found = []
        for line in self._lines if lines is None else lines:
            i = self._lines.index(line)
            try:
                if not line.poll(self.patience):
                    raise TimeoutError(
                        f"worker process {i} did not answer to {what!r} within {self.patience:g} seconds"
                    )
                found.append(line.recv())
            except (EOFError, ConnectionError) as error:
                raise RuntimeError(f"worker process {i} ended during {what!r}; its error is printed above") from error
        return found

    def _end(self) -> None:
        """Asks, waits a moment, and then does not ask any more."""
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send(("stop",))
        started = [p for p in self.processes if p.pid is not None]
        until = time.monotonic() + self.grace
        for process in started:
            process.join(max(0.0, until - time.monotonic()))
        for process in started:
            if process.is_alive():
                process.kill()
            process.join()
            process.close()
        for line in (*self._lines, *self._ends):
            line.close()
