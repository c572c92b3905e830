r"""A topology as a picture: its rounds as graphs, its spectrum, and how fast the workers agree.

The third panel is $\Vert W_{t-1}\cdots W_0 - \mathbf 1\mathbf 1^\top/n\Vert_2$ against t, computed from the rounds
themselves: the factor by which the worst disagreement is shrunk after t exchanges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dissensus.experiments.errors import ConfigError
from dissensus.experiments.figures.style import PALETTE, house_style, new_figure, save
from dissensus.theory.mixing import MixingMatrix
from dissensus.theory.mixing_time import exact_after
from dissensus.theory.topology import Topology

_BLUE, _ORANGE = PALETTE[2], PALETTE[5]
_LARGEST = 512
"""The spectrum is computed densely; beyond this it is the report's business."""
_DRAWN = 64
"""The most workers whose links can still be told apart."""


def topology_figure(topology: Topology, path: Path | str | None = None, *, rounds: int = 4, steps: int = 30) -> Figure:
    """Draws up to `rounds` rounds, the spectrum of one round, and the contraction over `steps`; writes it to `path`."""
    if topology.size > _LARGEST:
        raise ConfigError(
            f"a figure of topology {topology.name!r} with {topology.size} workers would show nothing: draw it with at "
            f"most {_LARGEST} workers"
        )
    shown = min(rounds, topology.period or rounds)
    with house_style():
        figure = new_figure(3.1 * shown + 7.4, 3.5)
        panels = figure.subplots(1, shown + 2, width_ratios=[1.0] * shown + [1.15, 1.15])
        for t in range(shown):
            _graph(panels[t], topology[t], _round_title(topology, t, shown))
        _spectrum(panels[-2], topology[0])
        _contraction(panels[-1], topology, steps)
    if path is not None:
        save(figure, Path(path))
    return figure


def _round_title(topology: Topology, t: int, shown: int) -> str:
    if topology.is_static:
        return f"{topology.name}, {topology.size} workers"
    of = f"of {topology.period}" if topology.period else "(drawn)"
    return f"round {t + 1} {of}" if t or shown > 1 else topology.name


def _graph(ax: Axes, w: MixingMatrix, title: str) -> None:
    """Workers on a circle; the width of a link is its weight, an arrow means one way only."""
    import networkx as nx

    n = w.size
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from((j, i, abs(v)) for i, j, v in w.triplets() if i != j)
    place = {i: (np.sin(2 * np.pi * i / n), np.cos(2 * np.pi * i / n)) for i in range(n)}
    both = [(a, b) for a, b in graph.edges if a < b and graph.has_edge(b, a)]
    one = [(a, b) for a, b in graph.edges if not graph.has_edge(b, a)]
    if n <= _DRAWN:
        width = {edge: 0.5 + 4.0 * graph.edges[edge]["weight"] for edge in graph.edges}
        nx.draw_networkx_edges(
            graph, place, both, ax=ax, width=[width[e] for e in both], edge_color=_BLUE, alpha=0.65, arrows=False
        )
        if one:
            nx.draw_networkx_edges(
                graph, place, one, ax=ax, width=[min(2.0, width[e]) for e in one], edge_color=_ORANGE, alpha=0.8,
                arrowsize=9, node_size=260, connectionstyle="arc3,rad=0.12",
            )  # fmt: skip
    size = 270 if n <= 16 else max(10, 4000 // n)
    nx.draw_networkx_nodes(
        graph, place, ax=ax, node_size=size, node_color="white", edgecolors="#222222", linewidths=1.2
    )
    if n <= 16:
        nx.draw_networkx_labels(graph, place, ax=ax, font_size=9)
    ax.set(title=title, aspect="equal", xlim=(-1.25, 1.25), ylim=(-1.25, 1.25))
    ax.axis("off")
    ax.annotate(f"{w.messages} messages a round", (0.5, -0.04), xycoords="axes fraction", ha="center", fontsize=9)


def _spectrum(ax: Axes, w: MixingMatrix) -> None:
    dense = w.dense()
    if w.is_symmetric:
        values = np.sort(np.linalg.eigvalsh(dense))[::-1]
        ax.axhline(0.0, color="#888888", linewidth=0.8)
        ax.stem(np.arange(1, w.size + 1), values, linefmt="C0-", markerfmt="o", basefmt=" ")
        for line in (*ax.collections, *ax.lines[1:]):
            line.set_color(_BLUE)
        ax.set(title="Spectrum of a round", xlabel="index k", ylabel=r"eigenvalue $\lambda_k(W)$", ylim=(-1.08, 1.08))
        return
    values = np.linalg.eigvals(dense)
    angle = 2 * np.pi * np.linspace(0, 1, 200)
    ax.plot(np.cos(angle), np.sin(angle), color="#888888", linewidth=0.8)
    ax.plot(np.real(values), np.imag(values), "o", color=_BLUE, alpha=0.8)
    ax.set(title="Spectrum of a round", xlabel=r"Re $\lambda$", ylabel=r"Im $\lambda$", aspect="equal")


def _contraction(ax: Axes, topology: Topology, steps: int) -> None:
    n = topology.size
    product, average = np.eye(n), np.full((n, n), 1.0 / n)
    norms = []
    for t in range(steps):
        product = topology[t] @ product
        norms.append(float(np.linalg.norm(product - average, 2)))
    at, values = np.arange(1, steps + 1), np.array(norms)
    exact = values < 1e-12
    ax.plot(at[~exact], values[~exact], "o-", color=_BLUE, markersize=3.5)
    ax.set(title="Contraction", xlabel="exchanges t", ylabel=r"$\Vert W_{t-1}\cdots W_0 - J\Vert_2$", yscale="log")
    ax.set_xlim(0, steps + 1)
    if exact.any() and exact_after(topology) is not None:  # a slow one only falls below rounding some day
        first = int(at[exact][0])
        ax.set_xlim(0, 3 * first + 1)
        ax.set_ylim(top=1.15)
        ax.axvline(first, color=_ORANGE, linestyle=(0, (4, 2)), linewidth=1.3)
        ax.annotate(f"exact average\nafter {first}", (first, 0.5), xycoords=("data", "axes fraction"), xytext=(6, 0),
                    textcoords="offset points", fontsize=9)  # fmt: skip
    if not (~exact).any():
        ax.set(yscale="linear", ylim=(0, 1))
