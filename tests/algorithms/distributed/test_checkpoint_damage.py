"""What is damaged is found before it is used, and named, with the checkpoint to go on from."""

import json
from pathlib import Path

import pytest
import torch
from saved_states import equal, state

from dissensus.algorithms import AlgorithmError
from dissensus.algorithms.engines.distributed.checkpoint import Checkpoint, checkpoints, latest
from dissensus.algorithms.engines.distributed.saving import save


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for step in (10, 20):
        save(tmp_path, step, {i: state(step, i) for i in range(3)}, size=3)
    return tmp_path


def last(folder: Path) -> Checkpoint:
    found = latest(folder)
    assert found is not None
    return found


INSTEAD = "; remove the directory step_000020 to go on from step_000010$"


def test_a_single_changed_byte_is_found_and_the_others_still_load(two: Path) -> None:
    file = two / "step_000020" / "worker_0001.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(
        AlgorithmError, match=f"worker_0001.pt is damaged: its sha256 is not that of what was written{INSTEAD}"
    ):
        last(two).state(1)
    assert equal(last(two).state(2), state(20, 2))


def test_a_file_that_is_cut_off_or_longer_is_found(two: Path) -> None:
    file = two / "step_000020" / "worker_0002.pt"
    content = file.read_bytes()
    for changed in (content[:-1], content + b"!", b""):
        file.write_bytes(changed)
        says = f"worker_0002.pt is cut off or changed: {len(changed)} bytes where {len(content)} were written{INSTEAD}"
        with pytest.raises(AlgorithmError, match=says):
            last(two).state(2)


def test_a_missing_file_is_named_and_what_to_do_too(two: Path) -> None:
    (two / "step_000020" / "worker_0000.pt").unlink()
    with pytest.raises(AlgorithmError, match=f"worker_0000.pt is missing{INSTEAD}"):
        last(two).state(0)
    (two / "step_000010" / "state.json").unlink()
    with pytest.raises(AlgorithmError, match="is missing; there is no other complete checkpoint in "):
        last(two).state(0)


@pytest.mark.parametrize("held", ["", "{", "[]", "{}", '{"schema_version": 1}', "\\udcff"])
def test_a_description_that_is_damaged_is_named_and_neither_swept_nor_passed_over(held: str, two: Path) -> None:
    (two / "step_000020" / "state.json").write_text(held)
    with pytest.raises(AlgorithmError, match=rf"state.json is damaged \(.*\){INSTEAD}"):
        latest(two)
    save(two, 30, {i: state(30, i) for i in range(3)}, size=3, keep=1)
    assert sorted(p.name for p in two.iterdir()) == ["step_000020", "step_000030"]
    assert [one.step for one in checkpoints(two, damaged="skip")] == [30]


def test_two_damaged_ones(two: Path) -> None:
    for step in (10, 20):
        (two / f"step_0000{step}" / "state.json").write_text("{")
    with pytest.raises(AlgorithmError, match=r"is damaged .*; there is no other complete checkpoint in"):
        latest(two)


def test_another_schema_is_not_guessed_at(two: Path) -> None:
    file = two / "step_000020" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_version": 9}))
    says = r"state.json has schema version 9, dissensus [\d.]+ reads version 1: go on with the dissensus that wrote it"
    with pytest.raises(AlgorithmError, match=says):
        latest(two)


def test_what_is_not_there(two: Path) -> None:
    with pytest.raises(AlgorithmError, match="step_000020 has no worker 3: of 3 workers it holds workers 0, 1, 2"):
        last(two).state(3)
    with pytest.raises(AlgorithmError, match=r"is no complete checkpoint: it has no state.json"):
        Checkpoint.read(two)


def test_a_file_with_code_is_refused_even_if_it_is_vouched_for(two: Path) -> None:
    place = two / "step_000020"
    torch.save({"f": torch.nn.Linear}, place / "worker_0000.pt")
    said = json.loads((place / "state.json").read_text())
    from dissensus.algorithms.engines.distributed.durable import measured

    said["workers"]["0"] |= measured(place / "worker_0000.pt")._asdict()
    (place / "state.json").write_text(json.dumps(said))
    with pytest.raises(AlgorithmError, match=r"worker_0000.pt is no file of tensors that torch.save wrote"):
        last(two).state(0)
