"""Laws of an engine, whatever it runs: what belongs to a worker stays with it, and looking leaves no trace."""

from __future__ import annotations

import copy
import io
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dissensus.algorithms.errors import AlgorithmError
from dissensus.algorithms.registry import algorithm as algorithm_named
from dissensus.testing.laws.modules import Modules, cross_entropy, network, options_of, samples
from dissensus.testing.laws.problems import OPTIMIZERS, Quadratics, generator_states, learning_rate, named
from dissensus.testing.laws.subject import COLUMNS, EngineFactory, Subject, default_topologies
from dissensus.testing.laws.trajectory_laws import matrix_form, resuming
from dissensus.testing.laws.verdict import Broken, DoesNotApply, Law, agree, require

N, STEPS = 4, 6
ROUNDING = 1e-11
ROWS, COLUMN = ("worker", "column"), ("column",)
MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.8)
ADAM = partial(torch.optim.Adam, lr=0.1)
LAYOUTS: dict[str, dict[str, Any]] = {"vmap": {}, "loop": {"gradients": "loop"}, "chunks of 3": {"chunk": 3}}
RECURSIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dsgd", {"order": "awc"}),
    ("dsgd", {"order": "cta"}),
    ("gradient-tracking", {}),
    ("sgp", {}),
    ("allreduce", {}),
)
"""Between them they make every request but a norm, on static, changing, directed and column stochastic rounds."""


@dataclass(frozen=True)
class Built:
    """The engine under test: how one is built."""

    factory: EngineFactory

    def on_network(self, *, dropout: float = 0.0, algorithm: str = "dsgd", **options: Any) -> Any:
        """Four workers with a small network on a directed schedule."""
        usual: dict[str, Any] = {"optimizer": MOMENTUM, "lr": learning_rate, "gradients": "vmap"}
        topology = named("one-peer-exponential", N)
        given = {"algorithm": algorithm, "topology": topology} | usual | options
        return self.factory(network(dropout=dropout), cross_entropy, **given)

    def subject(self, name: str, parameters: dict[str, Any], steps: int) -> Subject:
        """The engine running an algorithm on quadratics."""
        built = algorithm_named(name, **parameters)
        optimizers = {k: OPTIMIZERS[k] for k in ("momentum with decay", "adam")}
        factory = partial(self.factory, gradients="vmap")
        return Subject(built, default_topologies(built, N), optimizers, N, steps, factory, {}, 0)


def recursions(built: Built) -> None:
    """Algorithms that make every kind of request follow their matrix forms on it."""
    for name, parameters in RECURSIONS:
        try:
            matrix_form(built.subject(name, parameters, 12))
        except Broken as finding:
            raise Broken(f"{name}, {finding}") from finding


def own_modules(built: Built) -> None:
    """It does what n modules in a list do: own data, own BatchNorm statistics, own optimizer memory, param groups."""
    engine = built.on_network(groups=options_of)
    oracle = Modules(named("one-peer-exponential", N), MOMENTUM, learning_rate, options_of)
    _follow(engine, oracle, "param groups, momentum")


def clipping(built: Built) -> None:
    """`clip` bounds the norm of each worker's whole gradient, whatever the others' are."""
    try:
        engine = built.on_network(clip=0.4)
    except TypeError as error:
        raise DoesNotApply("it takes no clip=") from error
    _follow(engine, Modules(named("one-peer-exponential", N), MOMENTUM, learning_rate, clip=0.4), "clip=0.4", 1e-5)


def own_masks(built: Built) -> None:
    """Dropout differs between workers, steps and seeds, and between nothing else: not between layouts."""

    def masks(seed: int, **options: Any) -> np.ndarray:
        model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)).to(torch.float64)
        topology = named("ring", N)
        usual = {"algorithm": "dsgd", "topology": topology, "optimizer": MOMENTUM, "gradients": "vmap", "lr": 0.0}
        engine = built.factory(model, lambda m, b: m(b).mean(), **(usual | options), seed=seed)
        drawn = []
        for _ in range(2):
            engine.step(torch.ones(N, 1, 40, dtype=torch.float64))
            # at a learning rate of zero x stays, and the momentum tells which inputs were kept
            memory = engine.state_dict()["optimizer"]
            drawn.append(_rows_of(memory, N, 40))
        return np.stack([drawn[0], drawn[1] - 0.8 * drawn[0]]) > 1e-9

    found = masks(0)
    for i in range(N):
        for j in range(i):
            require(not (found[0, i] == found[0, j]).all(), f"step 0: workers {j} and {i} drop the same inputs")
        require(not (found[0, i] == found[1, i]).all(), f"worker {i} drops the same inputs at steps 0 and 1")
    require(not (masks(1) == found).all(), "another seed drops the same inputs")
    for name, options in LAYOUTS.items():
        agree(masks(0, **options).astype(float), found.astype(float), f"masks, layout {name} against vmap")


def layouts(built: Built) -> None:
    """One vmap, a loop and chunks give the same points, losses and buffers, with BatchNorm and dropout."""
    runs = {}
    for name, options in LAYOUTS.items():
        engine = built.on_network(dropout=0.4, **options)
        losses = [engine.step(samples(N, t)).losses.numpy() for t in range(STEPS)]
        runs[name] = (engine.x.numpy(), np.stack(losses), {k: b.numpy() for k, b in engine.buffers.items()})
    x, losses, buffers = runs.pop("vmap")
    for name, (its_x, its_losses, its_buffers) in runs.items():
        agree(its_losses, losses, f"layout {name} against vmap, losses", ROUNDING)
        agree(its_x, x, f"layout {name} against vmap, points at the end", ROUNDING, ROWS)
        for key, value in its_buffers.items():
            agree(value, buffers[key], f"layout {name} against vmap, buffer {key} at the end", ROUNDING, ROWS)


def resuming_everything(built: Built) -> None:
    """A resumed run equals the uninterrupted one to the bit: memory, phase, buffers, masks, the algorithm's state."""
    try:
        resuming(built.subject("gradient-tracking", {}, 12))
    except Broken as finding:
        raise Broken(f"gradient-tracking, {finding}") from finding
    for name, optimizer in (("momentum", MOMENTUM), ("adam", ADAM)):
        whole = built.on_network(dropout=0.4, optimizer=optimizer)
        for t in range(3):
            whole.step(samples(N, t))
        file = io.BytesIO()
        torch.save(whole.state_dict(), file)
        file.seek(0)
        resumed = built.on_network(dropout=0.4, optimizer=optimizer, seed=77)
        resumed.load_state_dict(torch.load(file, weights_only=True))
        for t in range(3, STEPS):
            a, b = whole.step(samples(N, t)), resumed.step(samples(N, t))
            agree(b.losses.numpy(), a.losses.numpy(), f"{name}, resumed after 3 steps, losses of step {t}", axes=ROWS)
        _same(resumed, whole, f"{name}, a resumed run")


def views(built: Built) -> None:
    """The consensus is the average in eval mode; training, generators and buffers do not notice what is done to it."""
    engine, untouched = built.on_network(dropout=0.4), built.on_network(dropout=0.4)
    for t in range(2):
        engine.step(samples(N, t))
        untouched.step(samples(N, t))
    buffers, before = engine.buffers, generator_states()
    with engine.consensus() as model:
        require(not any(m.training for m in model.modules()), "the consensus model is in train mode")
        point = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        agree(point, engine.x.mean(dim=0).numpy(), "the consensus model against the mean", ROUNDING, COLUMN)
        mean = buffers["1.running_mean"].mean(dim=0).numpy()
        agree(dict(model.named_buffers())["1.running_mean"].numpy(), mean, "its running mean", ROUNDING, ("feature",))
        model.train()
        inputs, targets = samples(N, 9)
        cross_entropy(model, (inputs[0], targets[0])).backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        for draw in (torch.rand, np.random.rand, lambda _: random.random()):
            draw(3)
    for name, was in before.items():
        require(generator_states()[name] == was, f"the global generator of {name} is not put back after a view")
    with engine.worker(1) as model:
        point = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        agree(point, engine.x[1].numpy(), "the model of worker 1", axes=COLUMN)
    agree(engine.mean.numpy(), engine.x.mean(dim=0).numpy(), "engine.mean against the mean of x", ROUNDING, COLUMN)
    _same(engine, untouched, "after a view")
    engine.step(samples(N, 2))
    untouched.step(samples(N, 2))
    _same(engine, untouched, "a step after a view")


def generators(built: Built) -> None:
    """Neither does a step advance a global generator, nor does what it computes depend on one."""
    runs, state = [], torch.get_rng_state()
    try:
        for seed in (1, 2):
            torch.manual_seed(seed)
            engine = built.on_network(dropout=0.4)
            before = generator_states()
            for t in range(2):
                engine.step(samples(N, t))
            for name, was in before.items():
                require(generator_states()[name] == was, f"two steps advanced the global generator of {name}")
            runs.append(engine.x.numpy())
    finally:
        torch.set_rng_state(state)
    agree(runs[1], runs[0], "the same run under another state of the global generator", axes=ROWS)


def arguments(built: Built) -> None:
    """The model, the batch and the starting points are not written to, and what is handed out is a copy."""
    model, batch = network(), samples(N, 0)
    d = sum(p.numel() for p in model.parameters())
    start = torch.randn(N, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = [g.clone() for g in (*model.state_dict().values(), *batch, start)]
    usual: dict[str, Any] = {"algorithm": "dsgd", "topology": named("ring", N), "optimizer": MOMENTUM, "lr": 0.1}
    engine = built.factory(model, cross_entropy, **usual, gradients="vmap", start=start)
    saved, x, buffers = engine.state_dict(), engine.x, engine.buffers
    kept = copy.deepcopy((saved, x, buffers))
    engine.step(batch)
    what = [f"the template's {k}" for k in model.state_dict()] + ["the inputs", "the targets", "start"]
    given = (*model.state_dict().values(), *batch, start)
    for name, now, then in zip(what, given, before, strict=True):
        require(torch.equal(now, then), f"{name} was written to")
    require(_equal(kept, (saved, x, buffers)), "x, buffers or a state_dict changed after they were handed out")


def not_a_number(built: Built) -> None:
    """A loss that is not finite is reported with worker and step before it spreads."""
    problem = Quadratics.draw(N, COLUMNS, 5)
    problem.noise[3, 2, 1] = np.nan
    engine = problem.engine(
        built.factory, algorithm="dsgd", topology=named("ring", N), optimizer=MOMENTUM, gradients="vmap"
    )
    for t in range(3):
        engine.step(problem.batch(t))
    try:
        engine.step(problem.batch(3))
    except AlgorithmError as error:
        require("worker 2" in str(error) and "step 3" in str(error), f"worker 2 at step 3 is not named: {error}")
    else:
        raise Broken("the gradient of worker 2 at step 3 is not a number, and nothing was said")
    require(bool(torch.isfinite(engine.x[[0, 1, 3]]).all()), "the other workers were reached by what is not a number")


ENGINE_LAWS: dict[str, Law[Built]] = {
    "recursions": recursions,
    "own modules": own_modules,
    "clipping": clipping,
    "own masks": own_masks,
    "layouts": layouts,
    "resuming": resuming_everything,
    "views": views,
    "generators": generators,
    "arguments": arguments,
    "not a number": not_a_number,
}


def _follow(engine: Any, oracle: Modules, where: str, tolerance: float = ROUNDING) -> None:
    """Runs an engine beside n modules."""
    found, expected = [engine.x.numpy()], [oracle.x]
    for t in range(STEPS):
        batch = samples(N, t)
        record = engine.step(batch)
        oracle.step(t, batch)
        found.append(engine.x.numpy())
        expected.append(oracle.x)
        agree(record.losses.numpy(), oracle.losses[-1].numpy(), f"{where}, losses of step {t}", tolerance, ROWS)
    agree(np.stack(found), np.stack(expected), where, tolerance)
    buffers = oracle.buffers()
    for name, value in engine.buffers.items():
        agree(value.numpy(), buffers[name], f"{where}, buffer {name} at the end", tolerance, ROWS)


def _same(engine: Any, other: Any, where: str) -> None:
    agree(engine.x.numpy(), other.x.numpy(), f"{where}: points", axes=ROWS)
    for name, value in engine.buffers.items():
        agree(value.numpy(), other.buffers[name].numpy(), f"{where}: buffer {name}", axes=ROWS)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def _rows_of(memory: Any, n: int, d: int) -> np.ndarray:
    """The one tensor (n, d) in an optimizer's memory, however deep it lies."""
    found: list[Tensor] = []

    def look(value: Any) -> None:
        if isinstance(value, Tensor) and tuple(value.shape) == (n, d):
            found.append(value)
        for v in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
            look(v)

    look(memory)
    require(len(found) == 1, f"the optimizer's memory in state_dict() holds {len(found)} tensors of shape ({n}, {d})")
    return found[0].numpy().copy()
