"""The Trainer of transformers trains in a pipeline as it does whole."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

SCRIPT = '''
import sys, torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        ids = torch.arange(6) * (index + 3) % 32
        return {"input_ids": ids, "labels": ids}

def trainer(kind, folder, **options):
    torch.manual_seed(0)
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).double()
    known = dict(use_cpu=True, report_to=[], per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=3, learning_rate=0.01)
    args = TrainingArguments(folder, **known, max_grad_norm=0.5, adam_epsilon=1e-5, logging_steps=1, save_steps=2)
    made = kind(model=model, args=args, train_dataset=Samples(), eval_dataset=Samples(), **options)
    made.train(resume_from_checkpoint=sys.argv[3] if len(sys.argv) > 3 else None)
    return made

name, schedule = sys.argv[1], sys.argv[2]
if schedule == "none":
    made = trainer(Trainer, name + ".log")
else:
    from chimera_pipeline.torch.hf import PipelineTrainer
    made = trainer(PipelineTrainer, name + ".log", pipeline={"schedule": schedule, "micro_batches": 4})
loss = made.evaluate()["eval_loss"]
logs = [(entry["loss"], float(entry["grad_norm"])) for entry in made.state.log_history if "grad_norm" in entry]
made.save_model(name + ".model")
if schedule == "none" or torch.distributed.get_rank() == 0:
    torch.save((loss, logs), name)
'''


def run(folder, name, schedule="none", *more, ranks=1):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launch, script, folder / name, schedule, *more]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]


def test_the_trainer_trains_in_a_pipeline_and_resumes_in_another(tmp_path):
    from safetensors.torch import load_file

    run(tmp_path, "whole")
    run(tmp_path, "pipeline", "chimera", ranks=2)
    run(tmp_path, "resumed", "1f1b", tmp_path / "pipeline.log" / "checkpoint-2", ranks=4)
    whole, *others = (torch.load(tmp_path / name) for name in ("whole", "pipeline", "resumed"))
    weights, *of_others = (load_file(tmp_path / f"{name}.model" / "model.safetensors") for name in ("whole", "pipeline", "resumed"))
    for other, found in zip(others, of_others):
        torch.testing.assert_close(other, whole, rtol=1e-5, atol=1e-6)
        assert found.keys() == weights.keys()
        for name, value in weights.items():
            # The model computes its norms in 32 bits.
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
