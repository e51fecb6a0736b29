"""The code of the pages runs."""

import os
import re
import tempfile
from pathlib import Path

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.pipelining.schedules")
pytest.importorskip("transformers")

import torch.nn.functional as F  # noqa: E402

import conform_pipelines  # noqa: E402
from ranks import on_ranks  # noqa: E402
from small import batch, linear  # noqa: E402

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


def run(text, **known):
    known.update(chimera=chimera, torch=torch, F=F)
    exec(compile(text, "page", "exec"), known)
    return known


def block(page, word):
    found = [text for text in blocks(page) if word in text]
    assert len(found) == 1, (page, word, len(found))
    return found[0]


def test_orders_of_the_page_are_proven(capsys):
    run(block("conform.md", "check_order(orders.pytorch_class"))
    run(block("conform.md", "pipeline_order"))


class MyPipeline(conform_pipelines.Pipeline):
    """The pipeline of the tests, with the attribute that the page names."""

    def __init__(self):
        super().__init__()
        self.stages = {self.rank: self.module}


def test_numbers_of_the_page_are_checked(monkeypatch):
    batches, model = conform_pipelines.batches(), conform_pipelines.whole
    asked = {}
    monkeypatch.setattr("chimera_pipeline.conform.check_pipeline", lambda make, **options: asked.update(options, make=make))
    run(block("conform.md", "check_pipeline(make"), MyPipeline=MyPipeline, Model=model, batches=batches)
    assert asked["n_ranks"] == [2, 4] and asked["max_norm"] == 1.0


def training(page_block):
    """The lines that make a runtime, on four ranks that are there."""
    text = block("python.md", page_block).replace('dist.init_process_group("gloo")\n', "")
    make = lambda stage: linear(stage, torch.float32)  # noqa: E731
    x, y = batch(dtype=torch.float32)
    from chimera_pipeline.torch import Runtime

    known = run(text, Runtime=Runtime, make_stage=make, x=torch.cat([x, x]), y=torch.cat([y.softmax(1), y.softmax(1)]))
    return known["loss"]


def hugging_face():
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2)
    ids = torch.randint(32, (8, 6))
    known = dict(AutoModelForCausalLM=AutoModelForCausalLM, config=LlamaConfig(**sizes), ids=ids, mask=torch.ones_like(ids), labels=ids)
    folder = [tempfile.mkdtemp()]
    torch.distributed.broadcast_object_list(folder)
    os.chdir(folder[0])
    known = run(block("hugging-face.md", "AutoModelForCausalLM.from_config"), **known)
    loaded = AutoModelForCausalLM.from_pretrained("trained").state_dict()
    for module in known["runtime"].modules.values():
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, loaded[name])


def run_all():
    losses = training("clip=1.0,")
    hugging_face()
    return losses


def test_training_of_the_page_trains():
    losses = on_ranks(4, run_all)
    assert all(loss == losses[0] > 0 for loss in losses)


def test_a_schedule_of_the_page_is_drawn():
    for text in blocks("python.md"):
        if "import chimera_pipeline" in text and "torch" not in text:
            run(text)
