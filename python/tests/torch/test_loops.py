"""Accelerate's and Lightning's loops train in a pipeline as they do whole, and go on from what another pipeline saved."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

MODEL = '''
import sys, torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        ids = torch.arange(6) * (index + 3) % 32
        return {"input_ids": ids, "labels": ids}

def made():
    torch.manual_seed(0)
    sizes = dict(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=4, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True)).double()

def loader():
    return torch.utils.data.DataLoader(Samples(), batch_size=8, shuffle=SHUFFLE)

folder, pipeline, more = sys.argv[1], eval(sys.argv[2]), sys.argv[3:]
'''

ACCELERATE = '''
from accelerate import Accelerator

if pipeline is None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
else:
    from chimera_pipeline.torch.accelerate import PipelineAccelerator
    accelerator = PipelineAccelerator(cpu=True, gradient_accumulation_steps=2, pipeline=pipeline)
model = made()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-5)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
model, optimizer, batches, scheduler = accelerator.prepare(model, optimizer, loader(), scheduler)
if more:
    accelerator.load_state(more[0])
log = []
for epoch in range(2):
    torch.manual_seed(epoch)
    for batch in batches:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                log.append(float(accelerator.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        log.append(float(loss))
    if epoch == 0:
        if more:
            break
        accelerator.save_state(folder + "/half")
with torch.no_grad():
    log.append(float(model(**next(iter(torch.utils.data.DataLoader(Samples(), batch_size=8)))).loss))
accelerator.save_model(model, folder + "/model")
if accelerator.is_main_process:
    torch.save(log, folder + "/log")
accelerator.wait_for_everyone()
'''

LIGHTNING = '''
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.log_of_run = made(), []
    def training_step(self, batch, index):
        loss = self.model(**batch).loss
        self.log_of_run.append(float(loss))
        return loss
    def validation_step(self, batch, index):
        self.log_of_run.append(float(self.model(**batch).loss))
    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=0.01, eps=1e-5)

known = dict(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder)
known |= dict(gradient_clip_val=0.5, accumulate_grad_batches=2, enable_checkpointing=False, num_sanity_val_steps=0)
# With a sampler of its own Lightning shuffles what ranks train on.
known |= dict(use_distributed_sampler=False)
if pipeline is None:
    strategy = dict(devices=1)
else:
    from chimera_pipeline.torch.lightning import PipelineStrategy
    strategy = dict(devices=int(more[0]), strategy=PipelineStrategy(**pipeline))
trainer = lightning.Trainer(max_epochs=len(more), **strategy, **known)
module = Module()
trainer.fit(module, loader(), loader(), ckpt_path=more[1] if len(more) > 1 else None)
trainer.save_checkpoint(folder + "/checkpoint")
if trainer.is_global_zero:
    torch.save(module.log_of_run, folder + "/log")
trainer.strategy.barrier()
'''

CHIMERA = {"schedule": "chimera", "micro_batches": 4}
LINE = {"schedule": "1f1b", "micro_batches": 2}


def run(folder, source, pipeline, *more, ranks=1, shuffle=False, launches=True):
    folder.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(MODEL.replace("SHUFFLE", str(shuffle)) + source)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 and launches else []
    command = [sys.executable, *torchrun, str(script), str(folder), repr(pipeline), *map(str, more)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return torch.load(folder / "log")


def close(one, other):
    # The model computes its norms in 32 bits.
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_accelerate_trains_in_a_pipeline_and_goes_on_in_another(tmp_path):
    pytest.importorskip("accelerate")
    from safetensors.torch import load_file

    whole = run(tmp_path / "whole", ACCELERATE, None)
    close(run(tmp_path / "four", ACCELERATE, CHIMERA, ranks=4), whole)
    # One epoch of the whole run and one of two stages, from what four saved.
    two = run(tmp_path / "two", ACCELERATE, LINE, tmp_path / "four" / "half", ranks=2)
    close(two[-10:-1], whole[-10:-1])
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "four", "two")]
    for name, value in weights[0].items():
        for other in weights[1:]:
            close(other[name], value)


def test_ranks_of_accelerate_draw_the_same_samples(tmp_path):
    pytest.importorskip("accelerate")
    whole = run(tmp_path / "whole", ACCELERATE, None, shuffle=True)
    close(run(tmp_path / "two", ACCELERATE, LINE, ranks=2, shuffle=True), whole)


def test_lightning_trains_in_a_pipeline_and_goes_on_in_another(tmp_path):
    pytest.importorskip("lightning")
    whole = run(tmp_path / "whole", LIGHTNING, None, 1)
    close(run(tmp_path / "four", LIGHTNING, CHIMERA, 4, ranks=4, launches=False), whole)
    on = run(tmp_path / "on", LIGHTNING, None, 1, tmp_path / "whole" / "checkpoint")
    close(run(tmp_path / "two", LIGHTNING, LINE, 2, tmp_path / "four" / "checkpoint", ranks=2), on)
