"""The contenders of the benchmark of many processes compute what they are said to, and nobody is left afterwards."""

import json
import os
import signal
import time

import numpy as np
import pytest
import torch

from dissensus.experiments.bench import distributed_agreement, distributed_contenders
from dissensus.experiments.bench.distributed_agreement import agreement, recursion, rounds_of_decent_dp
from dissensus.experiments.bench.distributed_contenders import CONTENDERS, SCHEDULES, missing
from dissensus.experiments.bench.distributed_group import Group
from dissensus.experiments.bench.distributed_models import MODELS, TINY, Pace
from dissensus.theory.registry import topology

HERE = tuple(name for name in CONTENDERS if name not in missing())


@pytest.fixture(scope="module")
def four():
    with Group(4) as group:
        yield group


@pytest.mark.parametrize("schedule", ["ring", "one-peer-exp", "complete"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_every_contender_follows_its_recursion(four, optimizer, schedule):
    found = agreement(four, HERE, optimizer, schedule)
    trained = {name for name in HERE if not name.startswith(("exchange", "all-reduce"))}
    assert set(found["difference"]) == set(found["agree"]) == trained
    assert all(found["agree"].values()), found
    for rounded in found["rounded"].values():
        assert 1e-9 < rounded["off"] < rounded["bound"]
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(("theirs", "ours"), [("ring", "one-peer-exp"), ("complete", "ring")])
def test_a_contender_that_mixes_otherwise_is_found_out(four, theirs, ours, monkeypatch):
    # the processes have tables of their own: here they are expected to do something else
    monkeypatch.setitem(distributed_agreement.SCHEDULES, theirs, SCHEDULES[ours])
    found = agreement(four, [n for n in ("local", "ours", "ours, bfloat16", "ddp") if n in HERE], "sgd", theirs)
    assert found["agree"].pop("local")
    assert found["agree"].pop("ddp")
    assert found["agree"]
    assert not any(found["agree"].values()), found


def gradient(model):
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def test_the_recursion_is_the_dense_one():
    lr, size = 0.01, 3
    w = topology("ring", size)[0].dense()
    models = [TINY.model() for _ in range(size)]
    x = np.stack([torch.nn.utils.parameters_to_vector(m.parameters()).detach().numpy() for m in models])
    for _ in range(2):
        rows = []
        for i, point in enumerate(x):
            model = TINY.model()
            torch.nn.utils.vector_to_parameters(torch.from_numpy(point), model.parameters())
            TINY.loss(model, TINY.samples(i)).backward()
            rows.append(gradient(model).numpy())
        x = w @ x - lr * np.stack(rows)
    np.testing.assert_allclose(recursion(TINY, "sgd", size, [w, w]), x, rtol=0, atol=1e-15)
    rounded = x + (w - np.eye(size)) @ torch.from_numpy(x).bfloat16().double().numpy()
    mixed = distributed_agreement._mixed(torch.from_numpy(w), torch.from_numpy(x), True).numpy()
    np.testing.assert_allclose(mixed, rounded, rtol=0, atol=1e-15)
    assert np.abs(mixed - w @ x).max() > 1e-4
    assert np.ptp(recursion(TINY, "adam", size, [None] * 3, pooled=True), axis=0).max() == 0.0
    assert np.ptp(recursion(TINY, "adam", size, [None] * 3), axis=0).max() > 1e-4


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_schedules_are_those_of_decent_dp(size):
    topo = pytest.importorskip("decent_dp.topo")
    for name, ours in SCHEDULES.items():
        bare = object.__new__(topo.TopologyReg.registry[name])  # it wants processes, its edges do not
        bare._world_size = size
        theirs = []
        for edges in bare._get_topo_edges():
            w = np.zeros((size, size))
            for edge in edges:
                w[np.ix_(edge.ranks, edge.ranks)] = (1 - edge.weight) / (len(edge.ranks) - 1)
                w[edge.ranks, edge.ranks] = edge.weight
            theirs.append(w)
        schedule = topology(ours, size)
        for t, w in enumerate(2 * theirs):
            np.testing.assert_allclose(schedule[t].dense(), w, atol=1e-15)


def test_the_rounds_of_decent_dp():
    assert rounds_of_decent_dp(5) == [None, 1, 3, 4, 5]
    assert rounds_of_decent_dp(1) == [None]


def test_the_models_have_the_size_in_their_name():
    for name, model in MODELS.items():
        assert model.d == sum(p.numel() for p in model.model().parameters())
        assert model.d == pytest.approx(1e6 * float(name.removesuffix("M")), rel=0.02)


def test_pauses_add_up_and_change_no_number(monkeypatch):
    slept = []
    monkeypatch.setattr("dissensus.experiments.bench.distributed_models.time.sleep", slept.append)
    pace, batch = Pace(0.3), TINY.samples(0)
    plain, paused = TINY.model(), TINY.model(pace)
    pace.begin()
    TINY.loss(plain, batch).backward()
    loss = TINY.loss(paused, batch)
    assert sum(slept) == pytest.approx(0.1)
    loss.backward()
    assert sum(slept) == pytest.approx(0.3)
    assert torch.equal(gradient(plain), gradient(paused))


def test_noise_is_log_normal_with_mean_one_and_the_same_for_every_contender():
    def draws(worker):
        pace = Pace(1.0, 0.3, worker)
        found = []
        for _ in range(4000):
            pace.begin()
            found.append(pace.now)
        return found

    first = draws(0)
    assert first == draws(0)
    assert first != draws(1)
    logs = np.log(first)
    # the seed is fixed: this is one sample, and its standard errors are 0.0047 and 0.0034
    assert logs.mean() == pytest.approx(-0.5 * 0.3**2, abs=3 * 0.0047)
    assert logs.std() == pytest.approx(0.3, abs=3 * 0.0034)


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(distributed_contenders, "decentralize", lambda optimizer, model, *, message_dtype=None: None)
    monkeypatch.setattr(distributed_contenders.importlib.util, "find_spec", lambda name: None)
    found = missing()
    assert found["ours, fused"] == "decentralize() has no fused= yet"
    assert "ours, bfloat16" not in found
    assert "pip install 'dissensus[bench-distributed]'" in found["decent-dp"]


# --- the processes ---


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pids, within=20.0):
    until = time.monotonic() + within
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(alive(pid) for pid in pids)


def test_a_process_that_dies_is_named_and_takes_the_others_along():
    with Group(2) as group:
        pids = [p.pid for p in group.processes]
        group.build(TINY, ["exchange, whole"], {"optimizer": "sgd", "schedule": "ring"})
        clock, cores = group.run("exchange, whole", 2)
        assert clock > 0
        assert cores > 0
        os.kill(pids[1], signal.SIGKILL)
        assert gone(pids[1:])
        with pytest.raises(RuntimeError, match=r"worker process [01] ended during 'run'"):
            group.run("exchange, whole", 2)
    assert gone(pids, within=0.0)


def test_an_interrupt_leaves_nobody():
    pids = []

    def interrupted():
        with Group(2) as group:
            pids.extend(p.pid for p in group.processes)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert gone(pids, within=0.0)
