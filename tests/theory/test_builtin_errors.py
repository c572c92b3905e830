"""Every refusal of a built-in, by its text; and what it proposes works."""

import re
from typing import Any

import pytest

from dissensus.theory import MixingError, topology

REFUSALS: list[tuple[str, int, dict[str, Any], str]] = [
    ("one-peer-ring", 7, {}, "one-peer-ring needs an even number of workers, got 7; the nearest that work are 6 and 8"),
    ("hypercube", 12, {}, "hypercube needs a power of two, got 12; the nearest that work are 8 and 16"),
    ("one-peer-hypercube", 3, {}, "one-peer-hypercube needs a power of two, got 3; the nearest that work are 2 and 4"),
    ("aer", 6, {}, "aer needs a power of two, got 6; the nearest that work are 4 and 8"),
    (
        "aer",
        24,
        {"workers_per_node": 4},
        "aer needs 4 workers on each of a power of two of nodes, got 24; the nearest that work are 16 and 32",
    ),
    ("aer", 17, {"workers_per_node": 8}, "got 17; the nearest that work are 16 and 32"),
    ("aer", 3, {"workers_per_node": 4}, "got 3; the nearest that works is 4"),
    ("aer", 8, {"workers_per_node": 0}, "aer: workers_per_node must be at least 1, got 0"),
    (
        "complete",
        6000,
        {},
        r"at most 5000 workers \(all n² weights are stored\), got 6000; the nearest that works is 5000",
    ),
    ("ring-lattice", 12, {"k": 3}, "even number of neighbours k >= 2, got k=3; the nearest that work are 2 and 4"),
    ("ring-lattice", 12, {"k": 0}, "even number of neighbours k >= 2, got k=0; the nearest that works is 2"),
    (
        "ring-lattice",
        4,
        {"k": 4},
        "ring-lattice needs more workers than its k=4 neighbours, got 4; the nearest that works is 5",
    ),
    ("torus", 7, {"rows": 3}, "torus needs a multiple of rows=3, got 7; the nearest that work are 6 and 9"),
    ("grid", 2, {"cols": 5}, "grid needs a multiple of cols=5, got 2; the nearest that works is 5"),
    (
        "torus",
        7,
        {"rows": 3, "cols": 4},
        "torus: 3 rows of 4 hold 12 workers, got n = 7; with these sides only n = 12 works",
    ),
    ("grid", 6, {"rows": 0}, "grid: rows must be at least 1, got 0"),
    ("torus", 6, {"cols": -2}, "torus: cols must be at least 1, got -2"),
    ("erdos-renyi", 20, {"p": 1.5}, r"erdos-renyi: p must lie in \[0, 1\], got 1.5; p = 0.3 is connected"),
    ("erdos-renyi", 20, {"p": float("nan")}, r"erdos-renyi: p must lie in \[0, 1\], got nan"),
    (
        "erdos-renyi",
        20,
        {"p": 0.01},
        "erdos-renyi: none of 100 draws was connected with n = 20 and seed = 0; p = 0.3 is",
    ),
    ("erdos-renyi", 20, {"seed": -1}, "erdos-renyi: seed must not be negative, got -1"),
    (
        "random-regular",
        7,
        {"degree": 3},
        "an even number of workers above degree=3, got 7; the nearest that work are 6 and 8",
    ),
    ("random-regular", 4, {"degree": 4}, "more workers than degree=4, got 4; the nearest that works is 5"),
    ("random-regular", 3, {"degree": 5}, "got 3; the nearest that works is 6"),
    ("random-regular", 6, {"degree": 0}, "random-regular needs a degree of at least 1, got 0"),
    ("random-regular", 6, {"degree": 1}, "with degree 1 only pairs are linked, got n = 6; degree 2 is a ring"),
    (
        "geometric",
        50,
        {"radius": 0.01},
        "geometric: none of 100 draws was connected with n = 50 and seed = 0; radius = 0.223 is",
    ),
    (
        "geometric",
        50,
        {"radius": -1.0},
        "geometric: the radius must be positive, got -1.0; radius = 0.223 is usual here",
    ),
    ("base-k", 6, {"k": 0}, "base-k needs at least one neighbour a round, got k=0; the nearest that works is k=1"),
    (
        "equitopo",
        6,
        {"kind": "statik"},
        "equitopo: kind must be 'static' or 'dynamic', got 'statik'; did you mean 'static'?",
    ),
    ("equitopo", 6, {"M": 0}, "equitopo needs M >= 1 shifts, got M=0"),
    ("equitopo", 6, {"kind": "dynamic", "eta": 0.0}, r"equitopo: eta must lie in \(0, 1\], got 0.0"),
    ("equitopo", 6, {"eta": 0.5}, "equitopo: eta belongs to kind='dynamic'"),
    ("random-digraph", 3, {"degree": 3}, "more than degree=3 workers, got 3; the nearest that works is 4"),
    ("random-digraph", 3, {"degree": 0}, "random-digraph needs a degree of at least 1, got 0"),
    (
        "hierarchical",
        10,
        {"workers_per_node": 4},
        "a multiple of workers_per_node=4, got 10; the nearest that work are 8 and 12",
    ),
    ("hierarchical", 8, {"workers_per_node": 0}, "hierarchical: workers_per_node must be at least 1, got 0"),
    ("hierarchical", 8, {"inside_steps": 0}, "hierarchical: inside_steps must be at least 1, got 0"),
    ("hierarchical", 8, {"inside_steps": 10**6}, "hierarchical: inside_steps must be at most 1000, got 1000000"),
    ("equitopo", 8, {"M": 10**15}, "equitopo: M must be at most 1000000, got 1000000000000000"),
    (
        "hierarchical",
        12,
        {"workers_per_node": 4, "across": "hypercube"},
        "hierarchical, across 3 nodes: hypercube needs a power",
    ),
    (
        "hierarchical",
        12,
        {"across": "rnig"},
        "hierarchical, across 4 nodes: unknown topology 'rnig'; did you mean 'ring'",
    ),
    ("hierarchical", 12, {"across": "random-digraph"}, "'random-digraph' is only column stochastic; 'ring' works"),
    ("star", 5, {"rule": "uniform"}, "uniform weights .* are doubly stochastic on regular graphs only"),
    ("ring", 5, {"rule": "metropolitan"}, "unknown weights 'metropolitan'; did you mean 'metropolis'"),
]


@pytest.mark.parametrize(("name", "n", "parameters", "message"), REFUSALS)
def test_refusals_say_what_and_what_works(name: str, n: int, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(MixingError, match=message):
        topology(name, n, **parameters)


@pytest.mark.parametrize(("name", "key", "value"), [("erdos-renyi", "p", 0.01), ("geometric", "radius", 0.01)])
def test_the_proposed_parameter_connects(name: str, key: str, value: float) -> None:
    for n in (3, 10, 50, 300):
        with pytest.raises(MixingError) as refusal:
            topology(name, n, **{key: value})
        proposed = re.search(rf"{key} = ([\d.]+) is connected", str(refusal.value))
        assert proposed is not None
        assert topology(name, n, **{key: float(proposed[1])}).size == n
