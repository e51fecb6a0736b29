"""Trains a small language model on the bytes of a file, by any schedule of whole sequences with at most eight stages.

    torchrun --nproc-per-node 4 train.py --schedule chimera
    torchrun --nproc-per-node 8 train.py --schedule zb-h1 --micro-batches 8     (two pipelines side by side)
"""

import argparse
from pathlib import Path

import chimera_pipeline as chimera
import torch
import torch.distributed as dist
import torch.nn.functional as F
from chimera_pipeline.torch import Runtime
from torch import nn

WIDTH, CONTEXT, LAYERS, DEPTH = 64, 64, 8, 4


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, ids):
        return self.tokens(ids) + self.positions.weight


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


def stage(index, n_stages):
    """A contiguous piece of the model; the layers are spread evenly."""
    torch.manual_seed(index)
    pieces = [Embedding()] if index == 0 else []
    pieces += [Block() for _ in range(LAYERS * (index + 1) // n_stages - LAYERS * index // n_stages)]
    if index == n_stages - 1:
        pieces.append(nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)))
    return nn.Sequential(*pieces)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--schedule", default="chimera")
    options.add_argument("--micro-batches", type=int, default=4)
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--text", type=Path, default=Path(__file__))
    chosen = options.parse_args()
    program = chimera.schedule(chosen.schedule, depth=DEPTH, micro_batches=chosen.micro_batches).lower()
    if program.stages > LAYERS:
        options.error(
            f"{program.schedule} has {program.stages} stages, and the model {LAYERS} layers, so that stages would be empty: "
            "choose another schedule"
        )
    # Asynchronous schedules update before the gradients of all ranks are known, and train several steps at once.
    is_synchronous = program.to_dict()["update"] == "flush"

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_node_local_rank())
    runtime = Runtime(
        program,
        stages=lambda s: stage(s, program.stages),
        loss_fn=lambda logits, ids: F.cross_entropy(logits.flatten(0, 1), ids.flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        clip=1.0 if is_synchronous else None,
    )
    text = torch.frombuffer(bytearray(chosen.text.read_bytes()), dtype=torch.uint8).long()
    group = dist.get_rank() // DEPTH
    for step in range(chosen.steps):
        torch.manual_seed(1000 * step + group)  # all workers of a pipeline group draw the same samples
        starts = torch.randint(len(text) - CONTEXT, (2 * program.micro_batches,))
        x = torch.stack([text[i : i + CONTEXT] for i in starts])
        y = torch.stack([text[i + 1 : i + CONTEXT + 1] for i in starts])
        loss = runtime.step(x, y)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss:.4f}, gradient norm {runtime.last.grad_norm:.3f}", flush=True)
    measured = runtime.timeline()
    if dist.get_rank() == 0:
        print(f"a step took {measured.makespan:.3f} s, of which {measured.bubble_ratio:.0%} idle\n{measured}")
    dist.barrier()  # no rank leaves while others still need it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
