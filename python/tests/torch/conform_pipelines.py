"""A small pipeline of GPipe's order in plain torch.distributed, and mutations of it."""

import torch
import torch.distributed as dist
from chimera_pipeline.conform import Trial
from torch import nn

WIDTH, N, LIMIT = 6, 4, 0.05
MSE = nn.functional.mse_loss


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Tied(nn.Module):
    """A stage of a model whose first and last stage have one matrix."""

    def __init__(self, stage):
        super().__init__()
        torch.manual_seed(stage)
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        if stage != 1:
            torch.manual_seed(99)
            self.table = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.float64))
        self.stage = stage

    def forward(self, x):
        if self.stage == 0:
            x = x @ self.table
        x = x + torch.tanh(self.linear(x))
        return x @ self.table.T if self.stage not in (0, 1) else x


def whole(n_stages=3):
    model = nn.Sequential(*(Tied(stage) for stage in range(n_stages)))
    model[n_stages - 1].table = model[0].table
    return model


def batches(n=3):
    torch.manual_seed(1)
    return [(torch.randn(8, WIDTH, dtype=torch.float64), torch.randn(8, WIDTH, dtype=torch.float64)) for _ in range(n)]


class Pipeline:
    """One stage on each rank. `mutation` names what it does wrong."""

    def __init__(self, mutation=""):
        self.rank, self.n = dist.get_rank(), dist.get_world_size()
        self.mutation, self.module = mutation, Tied(self.rank)
        self.optimizer = sgd(list(self.module.parameters()))
        self.is_first, self.is_last, self.count = self.rank == 0, self.rank + 1 == self.n, 0
        self.stale = [p.detach().clone() for p in self.module.parameters()]

    def step(self, x, target):
        xs, targets = x.chunk(N), target.chunk(N)
        kept, losses = [], []
        now = [p.detach().clone() for p in self.module.parameters()]
        if self.mutation == "stale" and self.rank == 1:
            self._load(self.stale)
        for m in range(N):
            if self.mutation == "hang" and self.rank == 2 and m == 3:
                dist.recv(torch.empty(2, WIDTH, dtype=torch.float64), 0)
            given = xs[m] if self.is_first else self._received(self.rank - 1, m).requires_grad_()
            made = self.module(given)
            if self.is_last:
                losses.append(MSE(made, targets[m]))
            else:
                dist.send(made.detach(), self.rank + 1)
            kept.append((given, made))
        for m in range(N):
            self._backward(m, *kept[m], losses[m] / self._divisor(m) if self.is_last else None)
        if self.mutation == "stale" and self.rank == 1:
            self._load(now)
        self.stale, self.count = now, self.count + 1
        self._tie()
        loss = sum(loss.item() for loss in losses) / N
        return loss * (self.n if self.mutation == "loss by ranks" else 1) if self.is_last else None

    def _load(self, weights):
        with torch.no_grad():
            for p, value in zip(self.module.parameters(), weights):
                p.copy_(value)

    def _received(self, peer, m):
        given = torch.empty(2, WIDTH, dtype=torch.float64)
        if self.mutation == "crossing" and self.rank == 1 and peer == 0 and m in (1, 2):
            if m == 1:
                self.early = torch.empty_like(given)
                dist.recv(self.early, peer)
                dist.recv(given, peer)
                return given
            return self.early
        dist.recv(given, peer)
        return given

    def _divisor(self, m):
        if self.mutation == "alone":
            return 1.0 if m == N - 1 else float("inf")
        return 1 if self.mutation == "scale" else N

    def _backward(self, m, given, made, loss):
        if loss is not None:
            made, gradient = loss, None
        else:
            gradient = self._received(self.rank + 1, -1)
        parameters = list(self.module.parameters())
        inputs = parameters if self.is_first else [*parameters, given]
        *grads, dx = (*torch.autograd.grad(made, inputs, gradient), None) if self.is_first else torch.autograd.grad(made, inputs, gradient)
        times = 0 if self.mutation == "lost" and self.rank == 1 and m == 2 else 1
        times = 2 if self.mutation == "doubled" and self.rank == 1 and m == 2 else times
        for p, grad in zip(parameters, grads):
            p.grad = grad * times if p.grad is None else p.grad + grad * times
        if not self.is_first:
            dist.send(dx, self.rank - 1)

    def _tie(self):
        if self.mutation == "tie":
            return
        table = self.module.table.grad if self.rank != 1 else torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        dist.all_reduce(table)

    def clip(self, limit):
        own = [p.grad for name, p in self.module.named_parameters() if self.mutation == "norm" or not (self.is_last and name == "table")]
        square = sum(grad.square().sum() for grad in own)
        dist.all_reduce(square)
        norm = square.sqrt().item()
        if not (self.mutation == "unclipped" and self.is_last) and norm > limit:
            for p in self.module.parameters():
                p.grad.mul_(limit / (norm + 1e-6))
        return norm

    def update(self):
        if not (self.mutation == "frozen" and self.rank == 1):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self):
        return {f"{self.rank}.{name}": p for name, p in self.module.named_parameters()}

    def save(self):
        if self.mutation == "unsaved" and self.rank == 1:
            return None
        factor = 2 if self.mutation == "saved" else 1
        return {name: p * factor for name, p in self.parameters().items()}


def trial(mutation=""):
    pipeline = Pipeline(mutation)
    return Trial(pipeline.step, pipeline.parameters, pipeline.clip, pipeline.update, pipeline.save)
