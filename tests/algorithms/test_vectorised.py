"""Linear layers, attention and losses of n workers at once against one after the other, and where gradients go."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dissensus.algorithms.engines import vectorised
from dissensus.algorithms.engines.vectorised import Sinks, Vectorised

N, B = 4, 3


def gradients(model: nn.Module, *, vectorised: bool, shape: tuple[int, ...]) -> dict[str, tuple[Tensor, Tensor]]:
    """Gradients by vmap, and the places they were to be written to."""
    g = torch.Generator().manual_seed(0)
    split = {
        name: torch.randn(N, *p.shape, generator=g, dtype=torch.float64).requires_grad_()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    x = torch.randn(N, B, *shape, generator=g, dtype=torch.float64)

    def one(parameters: dict[str, Tensor], own: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (own,)).square().sum()

    places = {name: torch.full_like(v, torch.nan).detach() for name, v in split.items()}
    if vectorised:
        with Vectorised(Sinks(split, places)):
            losses = torch.vmap(one)(split, x)
    else:
        losses = torch.stack([one({k: v[i] for k, v in split.items()}, x[i]) for i in range(N)])
    found = torch.autograd.grad(losses.sum(), list(split.values()))
    return {name: (v, places[name]) for name, v in zip(split, found, strict=True)}


class Twice(nn.Module):
    """One layer used twice, and its weight a third time elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(torch.tanh(self.layer(x)))
        return self.other(x) * self.layer.weight.sum() + x @ self.other.weight


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fixed, self.free = nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, 2)
        self.partly = nn.Linear(2, 2)
        self.partly.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.partly(self.free(torch.tanh(self.fixed(x))))


class Derived(nn.Module):
    """Weights that are computed from parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(5, 5)), nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight.t(), self.bias)
        return F.linear(input=y, weight=self.weight * 2) + F.linear(x, self.weight.tril())


MODELS = {
    "deep": lambda: nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7, bias=False), nn.Tanh(), nn.Linear(7, 2)),
    "twice": Twice,
    "frozen": Frozen,
    "derived": Derived,
}


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("name", sorted(MODELS))
def test_linear_layers_are_those_of_each_worker(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    expected = gradients(model, vectorised=False, shape=shape)
    for key, (value, _) in gradients(model, vectorised=True, shape=shape).items():
        torch.testing.assert_close(value, expected[key][0], rtol=1e-12, atol=1e-12)


def test_nothing_is_taken_over_where_torch_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "KNOWN", False)
    model = MODELS["deep"]().double()
    expected = gradients(model, vectorised=False, shape=(5,))
    for name, (value, place) in gradients(model, vectorised=True, shape=(5,)).items():
        torch.testing.assert_close(value, expected[name][0], rtol=1e-12, atol=1e-12)
        assert place.isnan().all()


def test_gradients_are_written_where_they_stay() -> None:
    found = gradients(MODELS["deep"]().double(), vectorised=True, shape=(5,))
    for name, (value, place) in found.items():
        assert value.data_ptr() == place.data_ptr(), name


def test_large_gradients_are_written_where_workers_lie_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorised, "ONE_BY_ONE", 12)
    small = vectorised.IN_CACHE
    g = torch.Generator().manual_seed(0)
    x, room = torch.randn(N, B, 4, generator=g), torch.zeros(N, 20)
    for rows, in_cache, written in ((3, small, True), (2, small, False), (2, 8 * N, False), (2, 8 * N - 1, True)):
        monkeypatch.setattr(vectorised, "IN_CACHE", in_cache)
        w, place = torch.randn(N, rows, 4, generator=g).requires_grad_(), room[:, : 4 * rows].view(N, rows, 4)
        with Vectorised(Sinks({"w": w}, {"w": place})):
            losses = torch.vmap(lambda w, x: F.linear(x, w).square().sum())(w, x)
        (found,) = torch.autograd.grad(losses.sum(), [w])
        assert (found.data_ptr() == place.data_ptr()) == written
        torch.testing.assert_close(found, torch.autograd.grad((x @ w.mT).square().sum(), [w])[0])


def test_a_weight_of_two_layers_is_not_written_in_place() -> None:
    found = gradients(Twice().double(), vectorised=True, shape=(5,))
    assert found["layer.weight"][0].data_ptr() != found["layer.weight"][1].data_ptr()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(), (2,), (3, 2)], ids=str)
def test_attention_is_that_of_each_worker(heads: tuple[int, ...], causal: bool) -> None:
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(N, *heads, 6, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in range(2))
    shared = torch.randn(*heads, 6, 4, generator=g, dtype=torch.float64)

    def one(q: Tensor, k: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, shared, is_causal=causal, scale=0.3)

    with Vectorised():
        together = torch.vmap(one)(q, k)
    alone = torch.stack([one(a, b) for a, b in zip(q, k, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), [q, k]) for o in (together, alone)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


SCORES = {"samples": (5, 4), "one sample": (4,), "positions": (5, 4, 3), "pixels": (5, 4, 3, 2)}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"ignore_index": 2},
    {"ignore_index": 2, "label_smoothing": 0.3},
    {"weight": torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)},
)


@pytest.mark.parametrize("few", [4, 16])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", SCORES.values(), ids=SCORES.keys())
def test_cross_entropy_is_that_of_each_worker(
    shape: tuple[int, ...], options: dict[str, Any], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectorised, "FEW_CLASSES", few)
    g = torch.Generator().manual_seed(0)
    z = torch.randn(N, *shape, generator=g, dtype=torch.float64).requires_grad_()
    lead = shape[:1] if len(shape) > 1 else ()
    labels = torch.randint(4, (N, *lead, *shape[2:]), generator=g)

    def one(z: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(z, labels, **options)

    with Vectorised():
        together = torch.vmap(one)(z, labels)
    alone = torch.stack([one(a, b) for a, b in zip(z, labels, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-13, equal_nan=True)
    for a, b in zip(*(torch.autograd.grad(o.nansum(), [z]) for o in (together, alone)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_cross_entropy_with_probabilities_or_labels_that_all_share() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(N, B, 4, generator=g, dtype=torch.float64)
    likely, labels = z.flip(0).softmax(-1), torch.randint(4, (B,), generator=g)
    with Vectorised():
        soft, shared = torch.vmap(F.cross_entropy)(z, likely), torch.vmap(lambda v: F.cross_entropy(v, labels))(z)
    torch.testing.assert_close(soft, torch.stack([F.cross_entropy(a, b) for a, b in zip(z, likely, strict=True)]))
    torch.testing.assert_close(shared, torch.stack([F.cross_entropy(a, labels) for a in z]))


def test_workers_need_not_come_first() -> None:
    g = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(*s, generator=g, dtype=torch.float64) for s in ((B, 5, N), (4, N, 5), (4, N)))
    with Vectorised():
        together = torch.vmap(F.linear, in_dims=(2, 1, 1))(x, w, b)
    torch.testing.assert_close(together, torch.stack([F.linear(x[..., i], w[:, i], b[:, i]) for i in range(N)]))


def test_a_loss_that_transforms_by_itself_is_left_alone() -> None:
    g = torch.Generator().manual_seed(0)
    w, x = (torch.randn(N, *s, generator=g, dtype=torch.float64) for s in ((4, 5), (B, 5)))
    labels = torch.randint(4, (N, B), generator=g)

    def steepness(w: Tensor, x: Tensor, labels: Tensor) -> Tensor:
        each = torch.vmap(torch.func.grad(lambda v, k: F.cross_entropy(F.linear(v, w), k)))(x, labels)
        return each.square().sum() + F.linear(x, w).sum()

    with Vectorised():
        together = torch.vmap(steepness)(w, x, labels)
    alone = torch.stack([steepness(*own) for own in zip(w, x, labels, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)


def test_an_error_within_leaves_vmap_as_it_was() -> None:
    with pytest.raises(RuntimeError), Vectorised():
        torch.vmap(F.linear)(torch.randn(N, B, 5), torch.randn(N, 4, 6))
    assert torch.vmap(torch.sum)(torch.ones(N, B)).tolist() == [B] * N


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("options", [{"attn_mask": "mask"}, {"dropout_p": 0.5}], ids=["mask", "dropout"])
def test_attention_with_masks_goes_through_vmap(options: dict[str, Any]) -> None:
    g = torch.Generator().manual_seed(0)
    q = torch.randn(N, 2, 6, 4, generator=g)
    mask = torch.randn(N, 6, 6, generator=g)

    def one(q: Tensor, mask: Tensor) -> Tensor:
        own: dict[str, Any] = {k: mask if v == "mask" else v for k, v in options.items()}
        return F.scaled_dot_product_attention(q, q, q, **own)

    with Vectorised():
        together = torch.vmap(one, randomness="different")(q, mask)
    if "attn_mask" in options:
        torch.testing.assert_close(together, torch.stack([one(a, m) for a, m in zip(q, mask, strict=True)]))
    assert together.shape == q.shape


def test_mixed_precision_is_left_to_torch() -> None:
    x, w = torch.randn(N, B, 5), torch.randn(N, 4, 5)
    with Vectorised(), torch.autocast("cpu", torch.bfloat16):
        assert torch.vmap(F.linear)(x, w).dtype == torch.bfloat16
