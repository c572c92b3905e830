"""Topologies from outside: a networkx graph, a list of links, a file of matrices.

Undirected graphs get doubly stochastic weights by one of the rules of `weights`. In a directed graph the edge u -> v
means that u sends to v, and each worker splits what it has evenly over itself and those it sends to: column-stochastic
weights, which keep sums, for push-sum.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from dissensus.theory.errors import MixingError, nearest
from dissensus.theory.mixing import MixingMatrix, Stochasticity
from dissensus.theory.registry import MOST_WORKERS
from dissensus.theory.topology import Topology, from_matrices
from dissensus.theory.weights import as_pattern, size_of, weigh

if TYPE_CHECKING:
    import networkx as nx


def from_graph(
    graph: nx.Graph | nx.DiGraph, rule: str | None = None, *, name: str | None = None, **options: Any
) -> Topology:
    """A static topology on a networkx graph; worker k is the k-th node in the order of `graph.nodes`.

    Undirected: any rule of `weigh` with its options, Metropolis unless told otherwise. Directed: column-stochastic,
    every worker splits itself evenly over itself and its successors (`uniform`, the only rule there). Edge attributes
    do not count.
    """
    called = name or getattr(graph, "name", "") or "graph"
    if not graph.is_directed():
        return from_matrices(weigh(graph, rule or "metropolis", **options), name=called)
    return from_matrices(_split_evenly(as_pattern(graph).T, rule, options), name=called)


def from_edges(
    edges: Iterable[Sequence[int]],
    n: int | None = None,
    *,
    directed: bool = False,
    rule: str | None = None,
    name: str = "edges",
    **options: Any,
) -> Topology:
    """A static topology from links [i, j] between the workers 0..n-1; n is one more than the largest unless given.

    A link may be listed twice and either way round; with `directed`, [i, j] means that i sends to j.
    """
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_WORKERS):
        raise MixingError(f"n must be a whole number from 1 to {MOST_WORKERS}, got {n!r}")
    pairs = [_link(at, e, n) for at, e in enumerate(edges)]
    if not pairs and n is None:
        raise MixingError("a list without links says nothing of the number of workers: give n")
    size = n if n is not None else 1 + max(max(e) for e in pairs)
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    sender, receiver = (ends[:, 0], ends[:, 1]) if directed else (ends.ravel(), ends[:, ::-1].ravel())
    a = sp.csr_array((np.ones(len(sender)), (receiver, sender)), shape=(size, size))
    w = _split_evenly(a, rule, options) if directed else weigh(a, rule or "metropolis", **options)
    return from_matrices(w, name=name)


def from_file(
    path: str | Path,
    *,
    promise: Stochasticity = "doubly",
    signed: bool = False,
    rule: str | None = None,
    workers_per_node: int = 1,
) -> Topology:
    """A topology from a file of mixing matrices or links, by its suffix.

    - `.npy`: one n x n array, or P x n x n for the rounds of a period.
    - `.csv`: one matrix, a row per line, commas between the numbers.
    - `.json`: a matrix as nested lists, a list of matrices, or an object with one of the keys `matrix`, `matrices`,
      `edges` (links [i, j], with `n` and `directed` if wanted, weights by rule) or `rounds` with `n` (per round a
      list of [receiver, sender, weight], as `dissensus topology --json --weights` writes it).

    `promise` and `signed` are what the matrices are checked against; `rule` is the rule for `edges`.
    """
    file = Path(path)
    readers = {".npy": _npy, ".csv": _csv, ".json": _json}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise MixingError(f"cannot read {file.name!r} by its suffix {file.suffix!r}{nearest(file.suffix, readers)}")
    if file.is_dir():
        raise MixingError(f"{str(file)!r} is a folder; expected a file of matrices or links")
    if not file.is_file():
        there = [f.name for f in file.parent.iterdir() if f.suffix.lower() in readers] if file.parent.is_dir() else []
        raise MixingError(f"there is no file {str(file)!r}" + (nearest(file.name, there) if there else ""))
    try:
        content = reader(file)
        if isinstance(content, dict) and "edges" in content:
            return from_edges(**content, rule=rule, name=file.stem)
        if isinstance(content, dict):
            content, workers_per_node = content["rounds"], content["workers_per_node"] or workers_per_node
        if rule is not None:
            raise MixingError(f"weights {rule!r} are for a file of edges; this one holds the matrices themselves")
        return from_matrices(content, name=file.stem, promise=promise, signed=signed, workers_per_node=workers_per_node)
    except MixingError as error:
        raise MixingError(f"{file.name}: {error}") from None
    except UNREADABLE as error:
        raise MixingError(
            f"{file.name}: its numbers or its text cannot be read ({error or type(error).__name__})"
        ) from None


UNREADABLE = (UnicodeDecodeError, OverflowError, RecursionError, ValueError, TypeError, csv.Error, MemoryError)
"""What the libraries raise on text in another encoding, on numbers beyond all bounds, on endless nesting."""


def _split_evenly(a: sp.sparray, rule: str | None, options: dict[str, Any]) -> MixingMatrix:
    """Column-stochastic weights on a pattern (row = receiver): 1/(1 + number of receivers) of each sender."""
    if rule not in (None, "uniform") or options:
        asked = f"weights {rule!r}" if rule not in (None, "uniform") else f"the option {next(iter(options))!r}"
        raise MixingError(
            f"{asked} cannot be had on a directed graph: it has uniform column-stochastic weights; "
            "make it undirected (graph.to_undirected()) for the others"
        )
    pattern = as_pattern(sp.csr_array(a))
    with_self = sp.csr_array(pattern + sp.eye_array(size_of(pattern), format="csr"))
    receivers = np.asarray(with_self.sum(axis=0)).ravel()
    return MixingMatrix(sp.csr_array(with_self @ sp.diags_array(1.0 / receivers)), "column")


def _link(at: int, edge: Any, n: int | None) -> tuple[int, int]:
    try:
        i, j = edge
    except (TypeError, ValueError):
        raise MixingError(f"link {at} is {edge!r}; a link is a pair of workers [i, j]") from None
    for k in (i, j):
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise MixingError(f"link {at} names the worker {k!r}; workers are whole numbers counted from 0")
        if k >= MOST_WORKERS:
            raise MixingError(f"link {at} names the worker {k}; there may be {MOST_WORKERS} workers at most")
        if n is not None and k >= n:
            raise MixingError(f"link {at} names the worker {k}, but there are only the workers 0 to {n - 1}")
    if i == j:
        raise MixingError(
            f"link {at} joins worker {i} to itself; leave it out: what a worker keeps follows from its other weights"
        )
    return int(i), int(j)


def _npy(file: Path) -> np.ndarray:
    try:
        array = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise MixingError(f"not a readable array of numbers: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise MixingError(f"expected an array of real numbers, got dtype {getattr(array, 'dtype', 'of an archive')}")
    return np.asarray(array, dtype=np.float64)


def _csv(file: Path) -> np.ndarray:
    with file.open(newline="", encoding="utf-8-sig") as stream:
        lines = [(at, cells) for at, cells in enumerate(csv.reader(stream), start=1) if any(c.strip() for c in cells)]
    if not lines:
        raise MixingError("the file is empty; expected one row of n numbers per worker")
    width = len(lines[0][1])
    for at, cells in lines:
        if len(cells) != width:
            raise MixingError(f"line {at} has {len(cells)} numbers, but line {lines[0][0]} has {width}")
    return np.array([[_number(c, f"line {at}", k) for k, c in enumerate(cells, 1)] for at, cells in lines])


def _number(text: str, where: str, column: int) -> float:
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise MixingError(f"{where}, column {column}: {text.strip()!r} is not a number") from None


def _json(file: Path) -> list[Any] | dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_once)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise MixingError(f"not valid JSON: {error}") from None
    if isinstance(content, dict):
        return _json_object(content)
    if _depth(content) == 2:
        return [_matrix(content)]
    if _depth(content) == 3:
        return [_matrix(m, f"matrix {k}, ") for k, m in enumerate(content)]
    raise MixingError("expected a matrix (a list of rows), a list of matrices, or an object with 'matrix' or 'edges'")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise MixingError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def _json_object(content: dict[str, Any]) -> list[Any] | dict[str, Any]:
    keys = {"matrix": set(), "matrices": set(), "edges": {"n", "directed"}, "rounds": set(content)}
    given = [k for k in keys if k in content]
    if len(given) != 1:
        unknown = next((k for k in content if k not in keys), None)
        why = f"has the key {unknown!r}{nearest(str(unknown), keys)}" if unknown else "is empty"
        why = f"has {' and '.join(given)}" if given else why
        raise MixingError(f"an object must have exactly one of matrix, matrices, edges, rounds; this one {why}")
    key, rest = given[0], {k: v for k, v in content.items() if k != given[0]}
    for k in rest:
        if k not in keys[key]:
            raise MixingError(f"the key {k!r} does not go with {key!r}{nearest(k, keys[key]) if keys[key] else ''}")
    value = content[key]
    if not isinstance(value, list):
        raise MixingError(f"{key!r} must be a list, got {value!r}")
    if key == "edges":
        if not isinstance(rest.get("directed", False), bool):
            raise MixingError(f"'directed' must be true or false, got {rest['directed']!r}")
        return {"edges": value, **rest}
    if key == "matrix":
        return [_matrix(value)]
    if key == "matrices":
        return [_matrix(m, f"matrix {k}, ") for k, m in enumerate(value)]
    if content.get("period", len(value)) is None:
        raise MixingError(
            "these rounds are the first few of a schedule that is drawn anew at every step, not a period; "
            "build it by its name"
        )
    return {"rounds": _rounds(value, content.get("n")), "workers_per_node": content.get("workers_per_node")}


def _rounds(rounds: list[Any], n: Any) -> list[sp.csr_array]:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_WORKERS:
        raise MixingError(f"'rounds' need the number of workers 'n', got {n!r}")
    built = []
    for t, triplets in enumerate(rounds):
        where = f"round {t}"
        if not isinstance(triplets, list):
            raise MixingError(f"{where} is {triplets!r}; expected a list of [receiver, sender, weight]")
        for k, entry in enumerate(triplets):
            if not (isinstance(entry, list) and [type(x) for x in entry[:2]] == [int, int] and len(entry) == 3):
                raise MixingError(f"{where}, entry {k} is {entry!r}; expected [receiver, sender, weight]")
            if not (0 <= entry[0] < n and 0 <= entry[1] < n):
                raise MixingError(f"{where}, entry {k} is {entry!r}, but there are only the workers 0 to {n - 1}")
            if type(entry[2]) not in (int, float):
                raise MixingError(f"{where}, entry {k} is {entry!r}: {entry[2]!r} is not a number")
        i, j, w = zip(*triplets, strict=True) if triplets else ((), (), ())
        built.append(sp.csr_array((np.array(w, dtype=np.float64), (i, j)), shape=(n, n)))
    return built


def _depth(content: Any) -> int:
    return 1 + _depth(content[0]) if isinstance(content, list) and content else int(isinstance(content, list))


def _matrix(rows: Any, where: str = "") -> sp.csr_array:
    """Nested lists as a sparse array; a ragged row or something that is no number is named."""
    if not isinstance(rows, list) or not rows:
        raise MixingError(f"{where}expected a list of rows, got {rows!r}")
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            raise MixingError(f"{where}row {i}: expected a list of numbers, got {row!r}")
        if len(row) != len(rows[0]):
            raise MixingError(f"{where}row {i} has {len(row)} numbers, but row 0 has {len(rows[0])}")
        for j, x in enumerate(row):
            if isinstance(x, bool) or not isinstance(x, int | float):
                raise MixingError(f"{where}row {i}, column {j}: {x!r} is not a number")
    return sp.csr_array(np.array(rows, dtype=np.float64))
