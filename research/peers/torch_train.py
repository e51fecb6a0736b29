"""A GPT-2 or a Llama trained with PyTorch on CPU: the peer to measure against.

One process trains eagerly, or compiled (`--compile`). With `--depth D` above 1, PyTorch's own pipeline runtime (gloo) trains in a process
per stage. With `--precision bf16` products are in bf16 by autocast, weights and moments stay f32. Prints tokens per second
(median step) as JSON. Needs: pip install torch numpy (torch 2.6 or later), and for `--compile` a C++ compiler.

  python torch_train.py --model gpt2 --precision f32 --depth 2 --schedule 1F1B --micro-batches 8 --micro-batch-size 4 \
      --layers 8 --hidden 256 --heads 8 --context 256 --vocab 256 --steps 12 --data book.txt
"""
import argparse, json, os, queue, statistics, sys, time
import torch, torch.nn as nn, torch.nn.functional as F
import torch.distributed as dist, torch.multiprocessing as mp

WARM_UP = 2  # steps at the start that are not measured


class GptBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        h = a.hidden
        self.heads = a.heads
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, t, h = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(h, -1)
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, h))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    def __init__(self, a):
        super().__init__()
        h, self.dim = a.hidden, a.hidden // a.heads
        self.heads, self.kv_heads, self.inner = a.heads, a.kv_heads, a.mlp_hidden
        self.ln1, self.ln2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.qkv, self.out = linear(h, (a.heads + 2 * a.kv_heads) * self.dim), linear(h, h)
        self.up, self.down = linear(h, 2 * a.mlp_hidden), linear(a.mlp_hidden, h)
        frequency = 1e4 ** (-torch.arange(0, self.dim, 2) / self.dim)
        angles = torch.outer(torch.arange(a.context), frequency).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x):
        left, right = x.chunk(2, -1)
        return (x * self.cos + torch.cat((-right, left), -1) * self.sin).to(x.dtype)

    def forward(self, x):
        b, t, h = x.shape
        n = [self.heads * self.dim] + 2 * [self.kv_heads * self.dim]
        q, k, v = (a.view(b, t, -1, self.dim).transpose(1, 2) for a in self.qkv(self.ln1(x)).split(n, -1))
        a = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, h))
        gate, up = self.up(self.ln2(x)).split(self.inner, -1)
        return x + self.down(F.silu(gate) * up)


class Part(nn.Module):
    def __init__(self, a, first, last, blocks):
        super().__init__()
        self.first, self.last, self.bf16 = first, last, a.precision == "bf16"
        gpt = a.model == "gpt2"
        if first:
            self.tok = nn.Embedding(a.vocab, a.hidden)
            self.pos = nn.Embedding(a.context, a.hidden) if gpt else None
        self.blocks = nn.ModuleList((GptBlock if gpt else LlamaBlock)(a) for _ in range(blocks))
        if last:
            self.ln = nn.LayerNorm(a.hidden) if gpt else nn.RMSNorm(a.hidden, eps=1e-5)
            self.head = nn.Linear(a.hidden, a.vocab, bias=False)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            if self.first:
                ids, x = x, self.tok(x)
                if self.pos is not None:
                    x = x + self.pos(torch.arange(ids.shape[1]))
            for b in self.blocks:
                x = b(x)
            return self.head(self.ln(x)) if self.last else x


def loss_fn(y, t):
    return F.cross_entropy(y.flatten(0, 1).float(), t.flatten())


def work(rank, a, q):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port), RANK=str(rank), WORLD_SIZE=str(a.depth))
    torch.set_num_threads(a.threads)
    torch.manual_seed(rank)
    data = torch.frombuffer(bytearray(open(a.data, "rb").read()), dtype=torch.uint8).long() % a.vocab
    gen = torch.Generator().manual_seed(0)
    cut = [a.layers * i // a.depth for i in range(a.depth + 1)]
    part = Part(a, rank == 0, rank == a.depth - 1, cut[rank + 1] - cut[rank])
    opt = torch.optim.AdamW(part.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    parameters = sum(p.numel() for p in part.parameters())
    run = torch.compile(part) if a.compile else part
    n = a.micro_batches * a.micro_batch_size
    if a.depth > 1:
        dist.init_process_group("gloo", rank=rank, world_size=a.depth)
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B
        stage = PipelineStage(part, rank, a.depth, torch.device("cpu"))
        kind = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[a.schedule]
        sched = kind(stage, a.micro_batches, loss_fn=loss_fn)
        counts = torch.tensor(parameters)
        dist.all_reduce(counts)
        parameters = counts.item()
    times, losses = [], []
    for _ in range(a.steps):
        at = torch.randint(0, len(data) - a.context - 1, (n,), generator=gen)
        x = torch.stack([data[i:i + a.context] for i in at])
        y = torch.stack([data[i + 1:i + 1 + a.context] for i in at])
        if a.depth > 1:
            dist.barrier()
        t0 = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        if a.depth > 1:
            out = []
            sched.step(*((x,) if rank == 0 else ()), **(dict(target=y, losses=out) if rank == a.depth - 1 else {}))
            losses.append(sum(l.item() for l in out) / max(len(out), 1))
        else:
            total = 0.0
            for xm, ym in zip(x.chunk(a.micro_batches), y.chunk(a.micro_batches)):
                l = loss_fn(run(xm), ym) / a.micro_batches
                l.backward()
                total += l.item()
            losses.append(total)
        opt.step()
        if a.depth > 1:
            dist.barrier()
        times.append(time.perf_counter() - t0)
    if rank == a.depth - 1:
        s = statistics.median(times[WARM_UP:])
        q.put(dict(tokens_per_s=n * a.context / s, first_loss=losses[0], last_loss=losses[-1],
                   parameters=parameters, version="torch " + torch.__version__))
    if a.depth > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    for name, d in dict(depth=1, micro_batches=8, micro_batch_size=4, layers=8, hidden=256, heads=8, kv_heads=0, mlp_hidden=0,
                        context=256, vocab=256, steps=12, threads=1, port=29555).items():
        p.add_argument("--" + name.replace("_", "-"), type=int, default=d)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--model", choices=["gpt2", "llama"], required=True)
    p.add_argument("--precision", choices=["f32", "bf16"], required=True)
    p.add_argument("--schedule", default="1F1B")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--data", required=True)
    a = p.parse_args()
    if a.depth == 1:
        q = queue.Queue()
        work(0, a, q)
        print(json.dumps(q.get()))
        sys.exit()
    ctx = mp.get_context("spawn")
    q = ctx.Queue()
    ps = [ctx.Process(target=work, args=(r, a, q)) for r in range(a.depth)]
    [x.start() for x in ps]
    while True:
        try:
            print(json.dumps(q.get(timeout=1)))
            break
        except queue.Empty:
            if any(x.exitcode for x in ps):
                [x.terminate() for x in ps]
                sys.exit("a process failed")
    [x.join() for x in ps]
