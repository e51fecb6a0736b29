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
    args = TrainingArguments(folder, **known, max_grad_norm=0.5, adam_epsilon=1e-5, logging_steps=1, save_strategy="no")
    made = kind(model=model, args=args, train_dataset=Samples(), eval_dataset=Samples(), **options)
    made.train()
    return made

folder = sys.argv[1]
if len(sys.argv) == 2:
    made = trainer(Trainer, folder + "/log")
else:
    from chimera_pipeline.torch.hf import PipelineTrainer
    made = trainer(PipelineTrainer, folder + "/log", pipeline={"schedule": "chimera", "micro_batches": 4})
loss = made.evaluate()["eval_loss"]
logs = [(entry["loss"], float(entry["grad_norm"])) for entry in made.state.log_history if "grad_norm" in entry]
name = folder + ("/whole" if len(sys.argv) == 2 else "/pipeline")
made.save_model(name + ".model")
if len(sys.argv) == 2 or torch.distributed.get_rank() == 0:
    torch.save((loss, logs), name)
'''


def test_the_trainer_trains_in_a_pipeline(tmp_path):
    from safetensors.torch import load_file

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch += [str(script), str(tmp_path), "pipeline"]
    for command in ([sys.executable, str(script), str(tmp_path)], launch):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-3000:]
    whole, pipeline = (torch.load(tmp_path / name) for name in ("whole", "pipeline"))
    torch.testing.assert_close(pipeline, whole, rtol=1e-5, atol=1e-6)
    weights = [load_file(tmp_path / f"{name}.model" / "model.safetensors") for name in ("whole", "pipeline")]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        # The model computes its norms in 32 bits.
        torch.testing.assert_close(weights[1][name], value, rtol=1e-5, atol=1e-6)
