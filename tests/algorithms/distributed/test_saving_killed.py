"""SIGKILL at random moments, of the only process or one of three: the last complete checkpoint loads and is right."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 4.0


@pytest.mark.parametrize("processes", [1, 3])
def test_the_last_complete_checkpoint_survives_kills_at_random_moments(processes: int, tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "saving_processes.py"), str(tmp_path), "0", str(SECONDS), str(processes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] >= 10
    assert seen["incomplete"] >= 1, "a kill in the middle of a save is what this is about"
    assert seen["complete"] <= 3, "the last two are kept, and one more where the kill came before pruning"
