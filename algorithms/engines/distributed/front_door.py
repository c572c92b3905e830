r"""The front door: an existing training loop becomes decentralized, one worker a process.

    opt = dissensus.decentralize(opt, model, algorithm="dsgd", topology="ring")

What comes back *is* a `torch.optim.Optimizer`: it shares parameter groups and state with the one it wraps, so
schedulers, closures, hooks, gradient scalers and clipping work as before. The loop computes the gradient; `step()`
leads the algorithm's conversation with it (`conversation`). In a single process it is the inner optimizer, to the bit.

Where a step spends its memory and its time. The parameters become views of a few flat buckets (`buckets`), and a bucket
is itself the message: what an algorithm posts before its gradient (order `awc`) leaves right after the step and is
under way while the loop runs forward and backward. Algorithms that only hand on points and gradients (`in_place`) are
mixed and moved where the parameters lie: beside parameters and gradients a step needs room for the messages that come.

While a message is under way the parameters must stay as they are. Whoever wants to change them between two steps (an
average of weights swapped in, weights clamped or loaded) calls `opt.settle()` first; without it the change is found and
refused. The model holds the point at which the next gradient is taken; for `sgp` that is the de-biased one.

What happens to what a loop can do:

| in the loop | meaning here |
|---|---|
| gradient accumulation | one mixing per `step()`, however many backwards came before it |
| `clip_grad_norm_` before `step()` | the norm of this worker's whole gradient |
| weight decay | the local optimizer's, at the mixed point (`awc`, `cta`) or the own one (`atc`) |
| a scaler skips a step (overflow) | this worker's gradient counts as zero and it does not move; mixing goes on |
| a parameter without gradient | does not move; it is mixed. Where an algorithm computes with gradients: zero |
| a frozen parameter | is not exchanged; frozen or thawed on the way it leaves or joins, on all workers at one step |
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from dissensus.algorithms.engines import views
from dissensus.algorithms.engines.distributed.before_forward import BeforeForward, take_over
from dissensus.algorithms.engines.distributed.entering import comes_again
from dissensus.algorithms.engines.distributed.fused import Fused, check_fused
from dissensus.algorithms.engines.distributed.handshake import agree, check_model, facts_of, together
from dissensus.algorithms.engines.distributed.hosting import LoopHost
from dissensus.algorithms.engines.distributed.peers import backend_of
from dissensus.algorithms.engines.distributed.surviving import Surviving
from dissensus.algorithms.engines.distributed.timeline import Timeline, write_trace
from dissensus.algorithms.engines.distributed.trained import Trained
from dissensus.algorithms.engines.distributed.wire import Wire
from dissensus.algorithms.engines.distributed.worker import LoopWorker, OnNan
from dissensus.algorithms.engines.fit import check_fit
from dissensus.algorithms.engines.watching import Unwatched, unless_watched
from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.protocol import Algorithm
from dissensus.algorithms.registry import algorithm as algorithm_by_name
from dissensus.algorithms.registry import check_optimizer
from dissensus.theory.registry import topology as topology_by_name
from dissensus.theory.topology import Topology

OnFailure = Literal["stop", "continue"]


def decentralize(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    *,
    algorithm: Algorithm | str = "dsgd",
    topology: Topology | str = "ring",
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    message_dtype: torch.dtype | None = None,
    fused: bool = False,
    accumulate: int = 1,
    start: Literal["equal", "own"] = "equal",
    timeout: float | None = None,
    on_nan: OnNan = "stop",
    on_failure: OnFailure = "stop",
    timeline: Timeline | None = None,
) -> Decentralized:
    """Makes the optimizer of a training loop decentralized. Call it after `init_process_group`, or without any.

    Args:
        optimizer: the local move, on parameters of the model.
        model: what the loop trains.
        algorithm: an algorithm or its name.
        topology: a topology of as many workers as there are processes, or its name.
        group: the processes; all of them unless given.
        seed: what the algorithm draws (compressors, directions); the same everywhere.
        message_dtype: `torch.bfloat16` sends half as much and rounds what is sent; see `exchange` for what that costs.
        fused: mixes and moves bucket by bucket inside backward, and frees each gradient there: less memory, the same
            numbers. The loop must not look at gradients between backward and step (no clipping by the whole norm).
        accumulate: with `fused`, how many backwards make a step.
        start: `equal`: all workers start at worker 0's parameters and buffers; `own`: at what they were given.
        timeout: seconds after which a peer that says nothing is given up; the group's own unless given, and always
            for NCCL.
        on_nan: what becomes of numbers that are not finite, before anybody else hears of them: `stop`, or None: sent.
        on_failure: when a process dies, hangs or leaves, all `stop` with an error, or those that are left `continue`
            and take it in again when it is started again; see `surviving`.
        timeline: where times are written; one of its own unless given.
    """
    distributed = dist.is_available() and dist.is_initialized()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    several = distributed and group is None and dist.get_world_size() > 1
    own = several and backend_of(None, device) == "gloo"
    again = comes_again() if group is None else None
    wire = Wire(group, timeout=timeout, timeline=timeline, device=device, own=own, again=again)

    def build() -> Decentralized:
        schedule = topology_by_name(topology, wire.size) if isinstance(topology, str) else topology
        recursion = algorithm_by_name(algorithm) if isinstance(algorithm, str) else algorithm
        if schedule.size != wire.size:
            raise AlgorithmError(f"the topology has {schedule.size} workers, but there are {wire.size} processes")
        return Decentralized(
            optimizer,
            model,
            recursion,
            schedule,
            wire,
            seed=seed,
            message_dtype=message_dtype,
            fused=fused,
            accumulate=accumulate,
            on_nan=on_nan,
            on_failure=on_failure,
        )

    opt = together(wire, build)
    options = {"seed": seed, "message_dtype": message_dtype, "fused": fused, "accumulate": accumulate, "start": start}
    options |= {"on_nan": on_nan, "on_failure": on_failure}
    facts = facts_of(opt.named, opt.algorithm, opt.topology, optimizer=type(optimizer).__name__, **options)
    agree(wire, facts)
    if start == "equal":
        opt.equalise()
    elif start != "own":
        raise AlgorithmError(f"start must be 'equal' or 'own', got {start!r}")
    opt.outlive(facts, join=again is not None)
    return opt


class Decentralized(Unwatched):
    """One worker's optimizer: the inner one moves, the algorithm says what travels and when. See `decentralize`."""

    _step_supports_amp_scaling = True  # a scaler leaves it to step() to skip a move: the others wait for the mixing

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        model: nn.Module,
        algorithm: Algorithm,
        topology: Topology,
        wire: Wire,
        *,
        seed: int = 0,
        message_dtype: torch.dtype | None = None,
        fused: bool = False,
        accumulate: int = 1,
        on_nan: OnNan = "stop",
        on_failure: OnFailure = "stop",
    ) -> None:
        if on_failure not in ("stop", "continue"):
            raise AlgorithmError(f"on_failure must be 'stop' or 'continue', got {on_failure!r}")
        check_fit(algorithm, topology)
        check_optimizer(algorithm, inner)
        check_model(model, fused=fused)
        if isinstance(inner, torch.optim.LBFGS):
            raise AlgorithmError(
                "LBFGS calls the loss itself, several times a step; use an optimizer that takes one gradient"
            )
        if fused:
            check_fused(algorithm, accumulate)
        elif accumulate != 1:
            raise AlgorithmError(f"accumulate={accumulate} belongs to fused=True: without it one step() is one mixing")
        self._worker: LoopWorker | None = None
        super().__init__(inner.param_groups, inner.defaults)  # the very same group dictionaries
        self.inner, self.algorithm, self.topology, self.wire, self.seed = inner, algorithm, topology, wire, seed
        self._share_with_inner()
        self._model = model
        self._worker = LoopWorker(
            inner,
            algorithm,
            topology,
            wire,
            seed=seed,
            message_dtype=message_dtype,
            on_nan=on_nan,
            apart=fused,
            surviving=on_failure == "continue" and wire.size > 1,
        )
        self._fused = Fused(self._worker, accumulate) if fused else None
        self._trained = Trained(inner, model, self._worker, self._fused)
        take_over(model, self._retire)
        self._trained.lay_out()
        before = BeforeForward(self._trained.before_forward) if self._worker.elsewhere else None
        self._hook = None if before is None else model.register_forward_pre_hook(before)
        for hold in filter(None, (self._fused and self._fused.detach, self._hook and self._hook.remove)):
            weakref.finalize(self, hold)

    @property
    def t(self) -> int:
        """How many steps have been made."""
        return self.held.t

    @property
    def worker(self) -> int:
        """Which worker this process is."""
        return self.wire.rank

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The processes it talks to."""
        return self.wire.group

    @property
    def timeline(self) -> Timeline:
        """Where the time went."""
        return self.wire.timeline

    @property
    def notes(self) -> Mapping[str, Any]:
        """What the algorithm noted in the last step: its gamma."""
        return self.held.notes

    @property
    def model(self) -> nn.Module:
        """What the loop trains."""
        return self._model

    @property
    def present(self) -> tuple[int, ...]:
        """The processes that are there: all of them, unless some were lost under `on_failure="continue"`."""
        return self.wire.present

    @property
    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that are exchanged, by name, in the order of the model."""
        known = self.held.known
        return [(name, p) for name, p in self._model.named_parameters() if id(p) in known]

    @unless_watched
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the algorithm with the gradients that the loop has computed."""
        began, held, loss = time.perf_counter(), self.held, None
        if closure is not None:
            self._trained.before_closure()
            held.ready()
            with torch.enable_grad():
                loss = closure()
        self._unscale()
        with torch.no_grad():
            late = self._trained.before_finish()
            held.finish(closure)
            if late:
                self._trained.lay_out()
            held.begin()
        if self._fused is not None:
            self._fused.release()
            self._fused.reset()
        self.timeline.add("step", began, time.perf_counter(), step=held.t - 1)
        return loss

    def settle(self) -> None:
        """Waits for the messages that are under way, so that parameters may be changed before the next step.

        The others then mix with what this worker was before the change.
        """
        self.held.land()

    def save_trace(self, path: str | Path) -> None:
        """Writes where the time of all processes went as a Chrome trace; every process calls it.

        Spans are kept where the optimizer was given a `Timeline(traced=True)`.
        """
        spans = self.wire.gather(self.timeline.spans, what="trace", step=self.t)
        if self.wire.rank == 0:
            write_trace(Path(path), dict(enumerate(spans)))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a param group; its parameters are exchanged from the next step on. Every process must do so."""
        if self._worker is None:
            super().add_param_group(param_group)
            return
        self.inner.add_param_group(param_group)
        self._share_with_inner()
        self._trained.check()
        self._trained.lay_out()

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, and beside it `dissensus`: the step, the algorithm's memory and the point it is at.

        The parameters are the model's, and what is under way is made from them again: save both between two steps.
        """
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        state = {**self.inner.state_dict(), "dissensus": self.held.save()}
        for after in self._optimizer_state_dict_post_hooks.values():
            changed = after(self, state)
            state = state if changed is None else changed
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a `state_dict()`: load the model's parameters as well, in either order."""
        state = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state)
            state = state if changed is None else changed
        if "dissensus" not in state:
            raise AlgorithmError(
                "the state is one of a plain optimizer (no 'dissensus' in it): load it before wrapping"
            )
        self.held.load(state["dissensus"])
        self.inner.load_state_dict({key: value for key, value in state.items() if key != "dissensus"})
        self._share_with_inner()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    @contextmanager
    def consensus(self, bn: Literal["average", "local"] = "average") -> Iterator[nn.Module]:
        """The average of the workers as a module of its own in eval mode; every process enters, and all see the same.

        Buffers are averaged too, or with `bn="local"` worker 0's; what was never trained is this process's.
        """
        if bn not in ("average", "local"):
            raise AlgorithmError(f"bn must be 'average' or 'local' on many processes, got {bn!r}")
        model = copy.deepcopy(self._model)
        own = dict(model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, mean in self.held.means(own).items():
                own[name].data = mean
            isolated = self.held.cut_off()
            for buffer in model.buffers():
                rows, whose = self.wire.rows(buffer.detach(), what="average of buffers", step=self.t)
                there = [k for k, q in enumerate(whose) if q not in isolated]
                rows = rows[there] if there else rows
                buffer.data = views.pooled({"": rows}, bn, {})[""].clone()
        for p in model.parameters():
            p.grad = None
        with views.generators_restored():
            yield model.eval()

    def outlive(self, facts: dict[str, Any], *, join: bool) -> None:
        """Gets ready to go on without some of the others, or joins them, under `on_failure="continue"`."""
        exchange = self.held.exchange
        if isinstance(exchange, Surviving):
            host = LoopHost(self, facts)
            exchange.serve(host)
            if join:
                exchange.join(host)
        elif join:
            raise AlgorithmError("this process was started again; others take it in with on_failure='continue' only")

    def equalise(self) -> None:
        """Every worker takes over worker 0's parameters and buffers, the frozen ones too."""
        with torch.no_grad():
            for value in (*self._model.parameters(), *self._model.buffers()):
                self.wire.broadcast(value.detach(), 0, what="start")
        self.held.restart()

    @property
    def held(self) -> LoopWorker:
        """The worker of this process."""
        assert self._worker is not None
        return self._worker

    def _share_with_inner(self) -> None:
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    def _retire(self) -> None:
        """Another optimizer has the model from now on."""
        if self._hook is not None:
            self._hook.remove()
        if self._fused is not None:
            self._fused.detach()
        self.held.restart()

    def _unscale(self) -> None:
        """What a scaler left to do: gradients in their true size, or none of them where it found an overflow."""
        found, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found is None and scale is None:
            return
        if self._fused is not None:
            raise AlgorithmError("fused=True moves before a scaler has looked at the gradients; use fused=False")
        self.held.void = found is not None and found.item() > 0
        if scale is not None and not self.held.void:
            for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
                p.grad.div_(scale.to(p.grad.device))
