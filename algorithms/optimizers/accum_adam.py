r"""AccumAdam and AccumAdamW: Adam that steps at every gradient and remembers only gradients averaged over s steps.

A worker of a decentralized run has a small batch, so the squares in Adam's second moment are mostly noise. Here the
memory is committed every s steps (`accum_steps`), from the mean of the s gradients: it is that of batches s times as
large. At step t = 1, 2, ... with $k = \lceil t/s \rceil$, committed moments $m, v$ and the window's mean so far $b$:

$$ \tilde m = \beta_1 m + (1-\beta_1) g, \qquad \tilde v = \beta_2 v + (1-\beta_2) g^2, \qquad
   x^+ = x - \alpha\, \frac{\tilde m/(1-\beta_1^k)}{\sqrt{\tilde v/(1-\beta_2^k)} + \epsilon}, \qquad b^+ = b + g/s $$

and where s divides t, after the move: $m^+ = \beta_1 m + (1-\beta_1) b^+$, $v^+ = \beta_2 v + (1-\beta_2) (b^+)^2$,
$b^+ = 0$. The tilded moments move the point and are forgotten. Weight decay: AccumAdam adds $\lambda x$ to g, so it
goes through the moments; AccumAdamW first shrinks x by $1-\alpha\lambda$. With s = 1 both are torch's, bit for bit
(those that torch runs by default on a CPU, neither `foreach` nor `fused`).

Where ε stands. Torch, and the code released with the paper, add ε to the root of the corrected second moment, as above.
`eps_in_root=True` has it inside, $\hat m / \sqrt{\hat v + \epsilon}$, as analyses of Adam do (Défossez et al. 2022,
arXiv:2003.02395, which DAdam's appears to extend); both bias corrections are kept, which that one simplifies. The two
are different numbers with one name: inside the root, $10^{-8}$ keeps the denominator above $10^{-4}$.

Reference: Wang, Zhang, Wu and Johansson 2025, arXiv:2410.11998, after their released code; a pseudo-code with β₁ in the
line that commits the second moment is a misprint: the code has β₂.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dissensus.algorithms.errors import AlgorithmError

PIECE, PIECE_ELSEWHERE = 1 << 18, 1 << 22
"""So many numbers, on a CPU and on other devices, go through all operations of a step before the next ones do: what is
transient needs room for these only, and on a CPU they stay in its caches."""


class _Piece(NamedTuple):
    """The same numbers of everything a step touches."""

    x: Tensor
    g: Tensor
    m: Tensor
    v: Tensor
    b: Tensor | None = None


class AccumAdam(torch.optim.Optimizer):
    """Adam with moments committed every `accum_steps` steps, and weight decay added to the gradient."""

    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        accum_steps: int = 1,
        eps_in_root: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "accum_steps": accum_steps,
            "eps_in_root": eps_in_root,
        }
        self._scratch: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        super().__init__(params, defaults)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._scratch = {}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a param group, after a look at its options."""
        super().add_param_group(param_group)
        _check(type(self).__name__, self.param_groups[-1])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of every parameter that has a gradient; gradients are not written to."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self._memory(p, group["accum_steps"])
                state["step"] += 1
                t = int(state["step"].item())
                whole = _Piece(p.detach(), p.grad, state["exp_avg"], state["exp_avg_sq"], state.get("window"))
                for piece in _cut(whole):
                    self._move(piece, group, t)
        return loss

    def _memory(self, p: Tensor, s: int) -> dict[str, Any]:
        """The memory of a parameter; it begins at its first gradient."""
        if p.grad is not None and p.grad.is_sparse:
            raise AlgorithmError(f"{type(self).__name__} has no form for sparse gradients; use torch.optim.SparseAdam")
        state = self.state[p]
        if not state:
            counter = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            state["step"] = torch.zeros((), dtype=counter)
            for name in ("exp_avg", "exp_avg_sq", "window")[: 3 if s > 1 else 2]:
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state

    def _move(self, piece: _Piece, group: dict[str, Any], t: int) -> None:
        """The recursion of the module on one piece, operation by operation as torch's Adam has them."""
        x, g, m, v, b = piece
        (beta1, beta2), lr, s, decay = group["betas"], float(group["lr"]), group["accum_steps"], group["weight_decay"]
        below, now_m, decayed = self._room(x)
        if decay != 0 and self._decoupled:
            x.mul_(1 - lr * decay)
        elif decay != 0:
            g = torch.add(g, x, alpha=decay, out=decayed)
        k = -(-t // s)
        correction1, correction2 = 1 - beta1**k, 1 - beta2**k
        if b is None:
            now_m = m.lerp_(g, 1 - beta1)
            now_v = v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        else:
            torch.lerp(m, g, 1 - beta1, out=now_m)
            now_v = torch.mul(v, beta2, out=below).addcmul_(g, g, value=1 - beta2)
        if group["eps_in_root"]:
            torch.div(now_v, correction2, out=below).add_(group["eps"]).sqrt_()
        else:
            torch.sqrt(now_v, out=below).div_(correction2**0.5).add_(group["eps"])
        x.addcdiv_(now_m, below, value=-(lr / correction1))
        if b is not None:
            b.add_(g, alpha=1 / s)
            if t % s == 0:
                m.lerp_(b, 1 - beta1)
                v.mul_(beta2).addcmul_(b, b, value=1 - beta2)
                b.zero_()

    def _room(self, x: Tensor) -> list[Tensor]:
        """Room for what is transient, kept from step to step, in the shape of a piece."""
        key, count = (x.device, x.dtype), x.numel()
        rooms = self._scratch.get(key)
        if rooms is None or rooms[0].numel() < count:
            rooms = self._scratch[key] = [torch.empty(count, dtype=x.dtype, device=x.device) for _ in range(3)]
        return [room[:count].view(x.shape) for room in rooms]


class AccumAdamW(AccumAdam):
    """AccumAdam with decoupled weight decay, as AdamW is to Adam."""

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        accum_steps: int = 1,
        eps_in_root: bool = False,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, accum_steps, eps_in_root)


def _cut(whole: _Piece) -> Iterator[_Piece]:
    """Views of the same numbers of all tensors: flat where memory allows it, otherwise by rows and columns."""
    x = whole.x
    limit = PIECE if x.device.type == "cpu" else PIECE_ELSEWHERE
    tensors = [t for t in whole if t is not None]
    if x.numel() <= limit:
        yield whole
        return
    if all(t.is_contiguous() for t in tensors):
        parts = [t.view(-1).split(limit) for t in tensors]
    elif x.ndim == 2 and x.shape[1] <= limit:
        parts = [t.split(limit // x.shape[1]) for t in tensors]
    elif x.ndim > 1:
        for row in zip(*(t.unbind() for t in tensors), strict=True):
            yield from _cut(_Piece(*row))
        return
    else:
        parts = [t.split(limit) for t in tensors]
    for part in zip(*parts, strict=True):
        yield _Piece(*part)


def _check(name: str, group: dict[str, Any]) -> None:
    """Refuses what is no number of the range."""
    for key in ("lr", "eps", "weight_decay"):
        if not 0.0 <= float(group[key]) < float("inf"):
            raise AlgorithmError(f"{name}: {key} must be a number of at least 0, got {group[key]}")
    betas = group["betas"]
    if len(betas) != 2 or not all(0.0 <= float(b) < 1.0 for b in betas):
        raise AlgorithmError(f"{name}: betas must be two numbers in [0, 1), got {betas}")
    s = group["accum_steps"]
    if isinstance(s, bool) or not isinstance(s, int) or s < 1:
        raise AlgorithmError(f"{name}: accum_steps must be a whole number of steps, at least 1, got {s!r}")
    for p in group["params"]:
        if p.is_complex():
            raise AlgorithmError(f"{name} moves real numbers; a parameter is {p.dtype}: train torch.view_as_real of it")
