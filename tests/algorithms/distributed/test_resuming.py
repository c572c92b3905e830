"""Going on with as many workers is exact; with another number refused, or the average or a part, as numpy has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved_states import equal, state

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint, latest
from dissensus.algorithms.engines.distributed.resuming import load
from dissensus.algorithms.engines.distributed.saving import save

N = 4
FACTS = {"algorithm": "dsgd", "topology": "ring of 4"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, 70, {i: state(70, i) for i in range(N)}, size=N, facts=FACTS)
    save(tmp_path, 80, {i: state(80, i) for i in range(N)}, size=N, facts=FACTS)
    return tmp_path


def pushed(worker: int) -> dict[str, Any]:
    """A worker of push-sum: what it deploys is x / w, and has another name than its point."""
    one, w = state(80, worker), torch.tensor([[0.5 + worker]])
    weight = one["parameters"]["weight"]
    return one | {"deployed": {"weight": weight / w}, "algorithm": {"weight": w}}


def stacked(workers: list[dict[str, Any]], part: str, name: str) -> np.ndarray:
    return np.stack([one[part][name].double().numpy() for one in workers])


@pytest.mark.parametrize("resume", ["exact", "average", "subset"])
def test_as_many_workers_go_on_exactly_whatever_is_said(resume: Any, folder: Path) -> None:
    found, states = load(folder, [2, 0], size=N, resume=resume, expect=FACTS)
    assert (found.step, list(states)) == (80, [2, 0])
    assert all(equal(states[i], state(80, i)) for i in states)


def test_an_earlier_one_by_its_directory_or_as_it_was_found(folder: Path) -> None:
    for place in (folder / "step_000070", str(folder / "step_000070"), Checkpoint.read(folder / "step_000070")):
        found, states = load(place, [1], size=N)
        assert found.step == 70
        assert equal(states[1], state(70, 1))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_the_average_is_that_of_numpy_and_everybody_starts_there(size: int, folder: Path) -> None:
    found, states = load(folder, range(size), size=size, resume="average")
    assert found.step == 80
    assert len(states) == size
    workers = [state(80, i) for i in range(N)]
    for one in states.values():
        for part, name in (("parameters", "weight"), ("parameters", "bias"), ("buffers", "mean")):
            rows, got = stacked(workers, part, name), one[part][name]
            assert got.dtype == workers[0][part][name].dtype
            # n float additions and a division: n + 1 roundings of numbers below the largest
            assert np.abs(got.double().numpy() - rows.mean(0)).max() <= 5 * torch.finfo(got.dtype).eps * abs(rows).max()
        assert torch.equal(one["buffers"]["count"], torch.tensor(80)), "a counter is not averaged"
        assert one["optimizer"] == {"param_groups": workers[0]["optimizer"]["param_groups"]}, "options, and no memory"
        assert one["names"] == workers[0]["names"]
        assert one["extra"] == {"position": 560, "order": "shuffled"}, "the entry that differs is gone"
        assert "generators" not in one


def test_what_all_workers_share_speaks_of_the_run_and_stays(tmp_path: Path) -> None:
    def shared(i: int) -> dict[str, Any]:
        own = state(5, i)
        own["extra"] = {"epoch": 3, "schedule": [torch.tensor(0.25)]}
        own["parameters"]["frozen"] = torch.full((3,), 0.1)
        return own

    save(tmp_path, 5, {i: shared(i) for i in range(3)}, size=3)
    _, states = load(tmp_path, [0], size=2, resume="average")
    assert equal(states[0]["extra"], {"epoch": 3, "schedule": [torch.tensor(0.25)]})
    assert torch.equal(states[0]["parameters"]["frozen"], torch.full((3,), 0.1)), "0.1 three times, by three, is 0.1"
    assert list(states[0]["algorithm"]) == ["lr"]
    assert torch.equal(states[0]["algorithm"]["lr"], torch.tensor([0.1]))


@pytest.mark.parametrize("change", ["differs", "lacks it", "only one parameter"])
def test_a_number_of_one_worker_is_no_number_of_the_run(change: str, tmp_path: Path) -> None:
    def own(i: int) -> dict[str, Any]:
        one = state(5, i)
        if change == "differs" and i == 2:
            one["algorithm"]["lr"] = torch.tensor([0.2])
        if change == "lacks it" and i == 2:
            del one["algorithm"]["lr"]
        if change == "only one parameter":  # a tracker of one column is one number, too
            one["parameters"] = {"x": torch.zeros(1)}
        return one

    save(tmp_path, 5, {i: own(i) for i in range(3)}, size=3)
    assert load(tmp_path, [0], size=2, resume="average")[1][0]["algorithm"] == {}


def test_options_that_differ_between_workers_are_left_to_the_new_run(tmp_path: Path) -> None:
    def own(i: int) -> dict[str, Any]:
        one = state(5, i)
        one["optimizer"]["param_groups"][0]["lr"] = 0.1 * (i + 1)
        return one

    save(tmp_path, 5, {i: own(i) for i in range(3)}, size=3)
    assert load(tmp_path, [0], size=2, resume="average")[1][0]["optimizer"] is None
    save(tmp_path, 6, {i: state(6, i) | {"optimizer": [1, 2]} for i in range(3)}, size=3)
    assert load(tmp_path, [0], size=2, resume="average")[1][0]["optimizer"] is None


def test_the_subset_are_the_first_with_their_own_memory_and_place(folder: Path) -> None:
    _, states = load(folder, range(2), size=2, resume="subset")
    for i in range(2):
        own, one = state(80, i), states[i]
        for part in ("parameters", "buffers", "optimizer", "extra", "names"):
            assert equal(one[part], own[part]), part
        assert list(one["algorithm"]) == ["lr"], "what is tracked is tracked by all together, and starts anew"


@pytest.mark.parametrize("resume", ["average", "subset"])
def test_push_sum_goes_on_from_its_de_biased_models_with_weights_one(resume: Any, tmp_path: Path) -> None:
    save(tmp_path, 80, {i: pushed(i) for i in range(N)}, size=N)
    _, states = load(tmp_path, range(2), size=2, resume=resume)
    for i in range(2):
        rows = np.stack([(pushed(w)["deployed"]["weight"]).numpy() for w in range(N)])
        expected = rows.mean(0, dtype=np.float64) if resume == "average" else rows[i]
        assert np.abs(states[i]["parameters"]["weight"].numpy() - expected).max() <= 5e-7 * abs(rows).max()
        assert states[i]["algorithm"] == {}, "the old weights are in the models now"
        assert "deployed" not in states[i]
    bias = states[1]["parameters"]["bias"]
    own = [state(80, w)["parameters"]["bias"] for w in range(N)]
    assert torch.allclose(bias, torch.stack(own).mean(0) if resume == "average" else own[1], rtol=1e-15)


def test_isolated_workers_are_no_part_of_the_average_or_of_a_subset(tmp_path: Path) -> None:
    save(tmp_path, 80, {i: state(80, i) for i in range(N)}, size=N, facts={"isolated": [1]})
    _, states = load(tmp_path, [0], size=2, resume="average")
    rows = stacked([state(80, i) for i in (0, 2, 3)], "parameters", "bias")
    assert np.abs(states[0]["parameters"]["bias"].numpy() - rows.mean(0)).max() <= 1e-15
    _, states = load(tmp_path, [1], size=2, resume="subset")
    assert equal(states[1]["parameters"], state(80, 2)["parameters"])
    assert equal(load(tmp_path, [1], size=N)[1][1], state(80, 1)), "as many workers go on exactly, isolated or not"


def test_without_a_worker_nothing_is_read(folder: Path) -> None:
    for file in (folder / "step_000080").glob("*.pt"):
        file.unlink()
    assert load(folder, [], size=2, resume="average")[1] == {}


def test_a_damaged_file_stops_the_average(folder: Path) -> None:
    (folder / "step_000080" / "worker_0003.pt").write_bytes(b"x")
    with pytest.raises(AlgorithmError, match=r"worker_0003\.pt is cut off or changed: 1 bytes"):
        load(folder, [0], size=2, resume="average")


AVERAGE = r"resume='average' \(all {} start at the average of the 4, without memory\)"


@pytest.mark.parametrize(
    ("size", "resume", "says"),
    [
        (2, "exact", rf"holds 4 workers, but there are 2 now: say {AVERAGE.format(2)}, or resume='subset' \(the first"),
        (6, "exact", rf"holds 4 workers, but there are 6 now: say {AVERAGE.format(6)}, or start 4 workers again"),
        (6, "subset", rf"holds 4 workers, and resume='subset' is for fewer, not for 6: say {AVERAGE.format(6)}"),
    ],
)
def test_another_number_of_workers_is_refused_with_the_two_ways_out(
    size: int, resume: Any, says: str, folder: Path
) -> None:
    with pytest.raises(AlgorithmError, match=f"step_000080 {says}"):
        load(folder, [0], size=size, resume=resume)


def test_workers_that_were_gone_are_told(tmp_path: Path) -> None:
    save(tmp_path, 9, {i: state(9, i) for i in (0, 3)}, size=4, together=lambda said: [said])
    says = (
        r"holds 2 workers of 4 \(lost or isolated: \[1, 2\]\), but there are 4 now: say resume='average' .*, or start "
        r"at most 2 with resume='subset'"
    )
    with pytest.raises(AlgorithmError, match=says):
        load(tmp_path, [0], size=4)
    assert equal(load(tmp_path, [1], size=2, resume="subset")[1][1]["parameters"], state(9, 3)["parameters"])
    _, states = load(tmp_path, [1], size=4, resume="average")
    rows = stacked([state(9, 0), state(9, 3)], "parameters", "bias")
    assert np.abs(states[1]["parameters"]["bias"].numpy() - rows.mean(0)).max() <= 1e-15


def test_nobody_is_left(tmp_path: Path) -> None:
    save(tmp_path, 9, {i: state(9, i) for i in range(2)}, size=2, facts={"isolated": [0, 1]})
    with pytest.raises(AlgorithmError, match="there is nothing to go on from; take an earlier checkpoint"):
        load(tmp_path, [0], size=3, resume="average")


def test_workers_of_different_models_have_no_average(tmp_path: Path) -> None:
    save(tmp_path, 9, {0: state(9, 0), 1: state(9, 1, width=51)}, size=2)
    with pytest.raises(AlgorithmError, match="the workers do not hold the same model: 'weight' differs between them"):
        load(tmp_path, [0], size=1, resume="average")


def test_a_run_that_has_changed_is_refused_unless_it_is_meant(folder: Path) -> None:
    other = FACTS | {"topology": "complete of 4"}
    says = (
        "step_000080 was saved with topology 'ring of 4', this run has 'complete of 4': give it the same, or say may_"
    )
    with pytest.raises(AlgorithmError, match=says):
        load(folder, [0], size=N, expect=other)
    load(folder, [0], size=N, expect=other, may_differ=["topology"])
    load(folder, [0], size=N, expect={"seed": 3})
    load(folder, [0], size=2, resume="average", expect=other)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"resume": "averge"}, "resume must be 'exact', 'average' or 'subset', got 'averge'; did you mean 'average'"),
        ({"workers": [4]}, "there is no worker 4: workers are counted from 0 to 3"),
    ],
)
def test_calls_that_cannot_be(call: dict, says: str, folder: Path) -> None:
    with pytest.raises(AlgorithmError, match=says):
        load(folder, **({"workers": [0], "size": N} | call))


def test_a_folder_without_a_complete_one(folder: Path, tmp_path: Path) -> None:
    for place in folder.iterdir():
        (place / "state.json").unlink()
    assert latest(folder) is None
    says = r"no complete checkpoint in .* \(2 incomplete, without state.json\): name another folder, or start anew"
    with pytest.raises(AlgorithmError, match=says):
        load(folder, [0], size=N)
    with pytest.raises(AlgorithmError, match=r"there is no complete checkpoint in .*gone \(no directory step_\.\.\.\)"):
        load(tmp_path / "gone", [0], size=N)
