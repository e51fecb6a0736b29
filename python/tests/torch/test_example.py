"""The example trains a whole model, or says why it does not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PATH = Path(__file__).parents[2] / "examples" / "train.py"


def test_layers_are_spread_over_the_stages():
    about = importlib.util.spec_from_file_location("train", PATH)
    train = importlib.util.module_from_spec(about)
    about.loader.exec_module(train)
    for n_stages in range(1, train.LAYERS + 1):
        counts = [sum(isinstance(part, train.Block) for part in train.stage(s, n_stages)) for s in range(n_stages)]
        assert sum(counts) == train.LAYERS and min(counts) + 1 >= max(counts) > 0


def test_a_schedule_with_more_stages_than_layers_is_refused():
    ran = subprocess.run([sys.executable, PATH, "--schedule", "hanayo"], capture_output=True, text=True)
    assert ran.returncode == 2 and "hanayo has 16 stages, and the model 8 layers" in ran.stderr


def test_asynchronous_schedules_train_it_too():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    ran = subprocess.run([*launch, PATH, "--schedule", "pipedream-2bw", "--steps", "1"], capture_output=True, text=True)
    # Its end is PyTorch's, whose processes may abort on their way out.
    assert "step 0: loss" in ran.stdout and "a step took" in ran.stdout, ran.stderr


def test_the_notebook_runs():
    pytest.importorskip("transformers")
    cells = json.loads((PATH.parent / "pipeline.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
