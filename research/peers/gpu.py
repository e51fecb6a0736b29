"""What the built `chimera` does on an NVIDIA GPU, beside PyTorch doing the same training, as one JSON file.

    python3 gpu.py path/to/chimera speed.json --half speed
    python3 gpu.py path/to/chimera checks.json --half checks

It needs the program, the driver, and a Python whose packages have CUDA 13's libraries, as PyTorch's do. Each half is
done within ten minutes. Trainings alternate, since a GPU's clock drifts; each has a process and a time limit of its own,
and what has been found is written after each, so that nothing is lost to one that fails.
"""

import argparse
import glob
import json
import os
import site
import statistics
import subprocess
import sys
import time

# What `chimera selftest` measures: GPT-2 of 124 million parameters, eight micro-batches of eight samples.
LAYERS, HIDDEN, HEADS, CONTEXT, VOCAB = 12, 768, 12, 1024, 50304
SAMPLES, MICRO_BATCHES, STEPS = 8, 8, 12


# How PyTorch is run: whether it compiles, whose attention it takes, and whether in bf16 or in tf32.
KINDS = {
    "eager": (False, "FLASH_ATTENTION", True),
    "compile": (True, "FLASH_ATTENTION", True),
    "compile with cuDNN's attention": (True, "CUDNN_ATTENTION", True),
    "compile in tf32": (True, "EFFICIENT_ATTENTION", False),
}


def train(is_compiled, attention, is_bf16):
    """Tokens per second of PyTorch, with weights in f32 and fused AdamW."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
            self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

        def forward(self, x):
            b, t, h = x.shape
            heads = self.qkv(self.norm_1(x)).view(b, t, 3, HEADS, h // HEADS).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, h))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(CONTEXT, HIDDEN)
            self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
            self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
            logits = self.head(self.norm(self.blocks(x)))
            return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")  # tf32, which bf16 does not feel
    model = Gpt().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if is_compiled else model
    ids = torch.randint(VOCAB, (MICRO_BATCHES, SAMPLES, CONTEXT), device="cuda")
    seconds = []
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, attention)):
        for _ in range(4 + STEPS):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for micro in ids:
                with torch.autocast("cuda", torch.bfloat16, enabled=is_bf16):
                    loss = forward(micro, micro) / MICRO_BATCHES
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    tokens = MICRO_BATCHES * SAMPLES * CONTEXT
    return {
        "tokens_per_s": tokens / statistics.median(seconds[4:]),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "loss": loss.item() * MICRO_BATCHES,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }


def libraries():
    """Folders of CUDA's libraries and NCCL's among Python's packages."""
    folders = site.getsitepackages() + [site.getusersitepackages()]
    found = [path for folder in folders for path in glob.glob(f"{folder}/nvidia/*/lib")]
    return ":".join(found + [os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")


class Results:
    """Everything found so far, in a file."""

    def __init__(self, path, seconds):
        self.path, self.end, self.found = path, time.time() + seconds, {"runs": []}

    def add(self, name, result):
        self.found["runs"].append({"what": name, **result})
        print(name, json.dumps(result)[:400], flush=True)
        with open(self.path, "w") as file:
            json.dump(self.found, file, indent=1)

    def run(self, name, command, limit, read, env=None):
        """The result of a process that has this many seconds, or why there is none."""
        limit = min(limit, self.end - time.time())
        if limit < 5:
            return self.add(name, {"error": "no time is left"})
        try:
            done = subprocess.run(command, timeout=limit, capture_output=True, text=True, env=env)
            said = done.stderr[-2000:] if done.returncode else ""
            result = {"code": done.returncode, **({"said": said} if said else {})}
            out = done.stdout
        except (subprocess.TimeoutExpired, OSError) as error:
            result, out = {"error": str(error)[:500]}, ""
        try:
            result["result"] = read(out)
        except (ValueError, IndexError, OSError) as error:
            result["unread"] = str(error)[:200]
        self.add(name, result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("chimera")
    parser.add_argument("json")
    parser.add_argument("--half", choices=["speed", "checks"], default="speed")
    parser.add_argument("--seconds", type=float, default=560)
    args = parser.parse_args()
    results = Results(args.json, args.seconds)
    env = {
        **os.environ,
        "LD_LIBRARY_PATH": libraries(),
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",  # several ranks on the one GPU
        "NCCL_MAX_CTAS": "2",
    }
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    results.run("nvidia-smi", query, 20, str.strip)
    results.run("devices", [args.chimera, "devices"], 30, str.strip, env)

    def selftest(name, limit, *parts):
        found = f"{args.json}.{len(results.found['runs'])}"
        if os.path.exists(found):
            os.remove(found)  # an older run's
        options = [option for part in parts for option in ("--part", part)]
        command = [args.chimera, "selftest", "--device", "cuda", "--json", found, *options]
        # Its own limit comes first, so that it says what hung.
        seconds = max(5, min(limit, results.end - time.time() - 10))
        read = lambda _: json.load(open(found))
        results.run(name, [*command, "--time", str(seconds)], limit + 10, read, env)

    def torch(kind):
        command = [sys.executable, __file__, "--torch", kind]
        results.run(f"PyTorch, {kind}", command, 120, lambda out: json.loads(out.splitlines()[-1]))

    if args.half == "checks":
        selftest("kernels, training and values", 150, "kernels", "training", "values")
        selftest("memory and NCCL", 150, "memory", "out of memory", "NCCL")
        selftest("layers", 80, "layers")
        selftest("steps in f32", 170, "steps f32")
        return
    for _ in range(2):
        selftest("chimera", 90, "steps bf16", "steps tf32")
        for kind in KINDS:
            torch(kind)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--torch"]:
        print(json.dumps(train(*KINDS[sys.argv[2]])))
    else:
        main()
