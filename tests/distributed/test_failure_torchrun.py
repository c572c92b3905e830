"""torchrun starts all processes again when one has failed: they enter for the first time, and go on where they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from crew import ENVIRONMENT

SCRIPT = """
import os, signal
import torch
import dissensus
from dissensus.algorithms import load_training, save_training

dissensus.init_process_group(timeout=60)
worker, folder = torch.distributed.get_rank(), os.environ["FOLDER"]
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
opt = dissensus.decentralize(opt, model, topology="complete", timeout=20, on_failure=os.environ["ON_FAILURE"])
begin = load_training(folder, opt, model)
for t in range(begin.step, 12):
    if worker == 1 and t == 7 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    opt.zero_grad()
    model(torch.ones(4, 3) * (1 + worker)).square().mean().backward()
    opt.step()
    if t == 4:
        save_training(folder, opt, model)
with open(f"{folder}.{worker}", "w") as told:
    told.write(f"{begin.step} {opt.t} {opt.present}")
"""


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
def test_all_that_are_started_again_enter_for_the_first_time(on_failure: str, tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "checkpoints"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", str(script)]
    environment = os.environ | ENVIRONMENT | {"FOLDER": str(folder), "ON_FAILURE": on_failure}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-6000:]
    assert [(tmp_path / f"checkpoints.{q}").read_text() for q in range(2)] == ["5 12 (0, 1)"] * 2
