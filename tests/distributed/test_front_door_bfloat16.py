r"""Messages in bfloat16: how far one exchange is off, that the mean is kept, and that equal workers stay equal.

With Q the rounding to bfloat16, half a unit of which is $2^{-8}$ of the power of two below, worker i takes

$$ x_i^+ = x_i + \gamma \sum_j W_{ij}\,(Q(x_j) - Q(x_i)) $$

so that against full precision it is off by $\gamma \sum_j (W - I)_{ij} (Q(x_j) - x_j)$, in every element at most
$\gamma\, \|W - I\|_\infty\, 2^{-8} \max_j |x_j|$ with $\|W - I\|_\infty = 2 \max_i (1 - W_{ii})$. Summed over i it is
zero, since the columns of $W - I$ sum to zero: the mean is kept. Where all are equal every bracket is zero.
"""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from plain import held, net, same, train
from pool import Pool
from swept import schedule_of
from torch import Tensor, nn

import dissensus
from dissensus.algorithms import algorithm
from dissensus.theory import topology as topology_named

HERE = Path(__file__)
N = 4


def points(dtype: torch.dtype) -> Tensor:
    """Numbers of all sizes, far from each other."""
    drawn = torch.Generator().manual_seed(1)
    sizes = 10.0 ** torch.linspace(-6, 6, 500, dtype=torch.float64)
    return (sizes * torch.randn(N, 500, generator=drawn, dtype=torch.float64)).to(dtype)


def exchanged(topology: str, dtype: torch.dtype, order: str, gamma: float, steps: int) -> list[Tensor]:
    """Exchanges without any gradient."""
    model = nn.Linear(500, 1, bias=False, dtype=dtype)
    with torch.no_grad():
        model.weight.copy_(points(dtype)[dist.get_rank()])
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        algorithm=algorithm("dsgd", order=order, gamma=gamma),
        topology=topology,
        start="own",
        message_dtype=torch.bfloat16,
    )
    path = []
    for _ in range(steps):
        opt.zero_grad()
        opt.step()
        path.append(model.weight.detach().clone()[0])
    return path


@pytest.mark.parametrize(
    ("topology", "dtype", "gamma", "order"),
    [
        ("ring", torch.float32, 1.0, "awc"),
        ("ring", torch.float64, 0.3, "atc"),
        ("path", torch.float32, 0.3, "awc"),
        ("path", torch.float64, 1.0, "atc"),
        ("one-peer-exponential", torch.float64, 1.0, "awc"),
        ("one-peer-exponential", torch.float32, 0.3, "atc"),
        ("complete", torch.float32, 1.0, "awc"),
    ],
)
def test_one_exchange_is_off_by_no_more_than_the_bound(
    topology: str, dtype: torch.dtype, gamma: float, order: str, processes: Pool
) -> None:
    paths = processes.run(N, f"{HERE}:exchanged", topology=topology, dtype=dtype, order=order, gamma=gamma, steps=1)
    x, measured = points(dtype).double(), torch.stack([path[0] for path in paths]).double()
    w = torch.from_numpy(topology_named(topology, N)[0].dense())
    exact = (1 - gamma) * x + gamma * w @ x
    largest = x.abs().max(dim=0).values
    off, norm = (measured - exact).abs(), (w - torch.eye(N).double()).abs().sum(1).max()
    arithmetic = 8 * torch.finfo(dtype).eps * largest  # of N additions and multiplications in the parameters' dtype
    assert (off <= gamma * norm * 2.0**-8 * largest + arithmetic).all()
    assert (off > 2.0**-12 * gamma * largest).any(), "messages were rounded"
    assert ((measured.mean(0) - x.mean(0)).abs() <= arithmetic).all(), "the mean is kept"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_exchanges_keep_the_mean_and_bring_the_workers_together(dtype: torch.dtype, processes: Pool) -> None:
    steps = 30
    paths = processes.run(N, f"{HERE}:exchanged", topology="ring", dtype=dtype, order="awc", gamma=1.0, steps=steps)
    x, measured = points(dtype).double(), torch.stack([path[-1] for path in paths]).double()
    largest = x.abs().max(dim=0).values
    assert ((measured.mean(0) - x.mean(0)).abs() <= 8 * steps * torch.finfo(dtype).eps * largest).all()
    # a contraction of 1/3 in every exchange, and after each an error of at most the bound: 4/3 2^-8 / (1 - 1/3),
    # twice, since the error of the mean of the others is in it as well
    assert ((measured - measured.mean(0)).abs() <= 2 * 2 * 2.0**-8 * largest).all()


def the_same_everywhere(topology: str, order: str) -> dict[str, Tensor]:
    model = net().float()
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model,
        algorithm=algorithm("dsgd", order=order),
        topology=topology,
        message_dtype=torch.bfloat16,
    )
    train(model, opt, range(10), 0, in_float)
    return held(model)


def in_float(model: nn.Module, t: int, worker: int) -> Tensor:
    return model(torch.randn(8, 5, generator=torch.Generator().manual_seed(t))).square().mean()


@pytest.mark.parametrize("order", ["awc", "atc"])
@pytest.mark.parametrize("topology", ["ring", "path", "one-peer-exponential"])
def test_equal_workers_stay_equal_to_the_bit(topology: str, order: str, processes: Pool) -> None:
    first, *others = processes.run(N, f"{HERE}:the_same_everywhere", topology=topology, order=order)
    assert all(same(first, other) for other in others)


def pushed() -> Tensor:
    """Push-sum among workers of which some push more than others, with gradients of zero."""
    model = nn.Linear(500, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(points(torch.float64)[dist.get_rank()])
    opt = dissensus.decentralize(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        algorithm="sgp",
        topology=schedule_of("push"),
        start="own",
        message_dtype=torch.bfloat16,
    )
    for _ in range(30):
        opt.zero_grad()
        (0.0 * model(torch.zeros(1, 500, dtype=torch.float64)).sum()).backward()
        opt.step()
    return model.weight.detach().clone()[0]


def test_push_sum_keeps_its_sums(processes: Pool) -> None:
    """Where rows do not sum to one, x+ = A Q(x) + (x - Q(x)) keeps the sum of x and the sum of the weights."""
    x, measured = points(torch.float64), torch.stack(processes.run(N, f"{HERE}:pushed"))
    largest = x.abs().max(dim=0).values
    # what remains is the rounding of the last rounds: each leaves half a unit, and halves those before it
    assert ((measured - x.mean(0)).abs() <= 2 * 2.0**-8 * largest).all()
