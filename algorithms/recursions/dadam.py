r"""DAdam: decentralized training with a local Adam at every worker. It is DSGD whose local optimizer is Adam.

| order | recursion |
|---|---|
| `awc` (published) | $x_i^+ = \sum_j W_{\gamma,ij}\, x_j - \alpha\, u_i(g_i(x_i))$ |
| `atc` | $x_i^+ = \sum_j W_{\gamma,ij}\,(x_j - \alpha\, u_j(g_j(x_j)))$ |
| `cta` | $y_i = \sum_j W_{\gamma,ij}\, x_j,\quad x_i^+ = y_i - \alpha\, u_i(g_i(y_i))$ |

$$ m_i^+ = \beta_1 m_i + (1-\beta_1) g_i, \qquad v_i^+ = \beta_2 v_i + (1-\beta_2) g_i^2, \qquad
   u_i = \frac{\hat m_i}{\sqrt{\hat v_i} + \epsilon}, \quad
   \hat m_i = \frac{m_i^+}{1-\beta_1^t}, \; \hat v_i = \frac{v_i^+}{1-\beta_2^t} $$

and $W_\gamma = (1-\gamma) I + \gamma W$ as in `dsgd`. Moments are local and never mixed. Which Adam moves the point is
the choice of the local optimizer, `torch.optim.Adam` where none is named:

- `adam`, `adamw`: torch's form, ε beside the root, as above; the code released with the paper computes this one;
- `accum-adam` with `accum_steps = 1`, `eps_in_root`: ε inside, $u = \hat m / \sqrt{\hat v + \epsilon}$, as in proofs;
- `accum-adam`, `accum-adamw` with `accum_steps` s > 1: moments committed every s steps.

An optimizer without a second moment is refused: with SGD this would be `dsgd` under a wrong name.

Reference: Wang, Zhang, Wu and Johansson 2025, arXiv:2410.11998.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dissensus.algorithms.recursions.dsgd import Dsgd
from dissensus.algorithms.registry import register


@register("dadam")
@dataclass(frozen=True)
class DAdam(Dsgd):
    """DSGD with an Adam as the local optimizer."""

    name: ClassVar[str]
    reference: ClassVar[str] = "Wang, Zhang, Wu and Johansson 2025, arXiv:2410.11998"
    optimizer: ClassVar[str] = "adam"
    families: ClassVar[tuple[str, ...]] = ("adam", "adamw", "accum-adam", "accum-adamw", "adamax", "nadam", "radam")
    """The local optimizers it may be called by this name with."""
