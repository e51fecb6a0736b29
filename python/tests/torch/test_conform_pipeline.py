"""Trials of pipelines: a right one raises no alarm, and what is wrong with each mutation is found and named."""

import functools
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from chimera_pipeline.conform import NotThePipeline, check_pipeline  # noqa: E402
from chimera_pipeline.conform._check import compare  # noqa: E402
from chimera_pipeline.conform._trial import record  # noqa: E402
from chimera_pipeline.conform._whole import Whole  # noqa: E402

import conform_pipelines  # noqa: E402
from conform_pipelines import LIMIT, MSE, N, batches, sgd, trial, whole  # noqa: E402

OPTIONS = dict(whole=whole, loss_fn=MSE, micro_batches=N, n_ranks=3, optimizer=sgd, max_norm=LIMIT)


def check(make, **changed):
    return check_pipeline(make, **{**OPTIONS, "batches": batches(), **changed})


def test_a_right_pipeline_raises_no_alarm():
    report = check(trial)
    assert report.n_ranks == [3] and len(report.losses) == len(report.norms) == 3


MUTATIONS = {
    "lost": ("lost micro-batch", 0, 1, "`1.linear.weight`, `1.linear.bias` lacks micro-batch 2"),
    "doubled": ("doubled work", 0, 1, "counts micro-batch 2 twice"),
    "scale": ("scale", 0, 0, "4 times as large as it should be, as if by the number of its 4 micro-batches"),
    "alone": ("one micro-batch", 0, 0, "is trained on micro-batch 3 of 4 alone"),
    "tie": ("missing tie", 0, 0, "`0.table` has the gradient of its own use alone, and is tied to `2.table`"),
    "stale": ("loss", 1, 2, "the loss is"),
    "crossing": ("loss", 0, 2, "the loss is"),
    "norm": ("norm", 0, 0, "it counts each replica"),
    "unclipped": ("unclipped", 0, 2, "is updated by gradients that are not clipped"),
    "frozen": ("update", 0, 1, "is not updated"),
    "saved": ("saved", None, 0, "is saved with other values"),
    "unsaved": ("saved", None, None, "`1.linear.bias` is in no rank's checkpoint"),
}


class Threads:
    """The functions of torch.distributed that the pipeline calls, between threads."""

    def __init__(self, n):
        self._n, self._rank, self._meet = n, threading.local(), threading.Barrier(n)
        self._channels = {(a, b): queue.Queue() for a in range(n) for b in range(n)}
        self._sums = [None] * n

    def get_rank(self):
        return self._rank.number

    def get_world_size(self):
        return self._n

    def send(self, tensor, to):
        self._channels[self.get_rank(), to].put(tensor.clone())

    def recv(self, tensor, source):
        tensor.copy_(self._channels[source, self.get_rank()].get(timeout=60))

    def all_reduce(self, tensor):
        self._sums[self.get_rank()] = tensor.clone()
        self._meet.wait(60)
        total = sum(self._sums)
        self._meet.wait(60)
        tensor.copy_(total)

    def run(self, function):
        """Returns the result of the function on each rank."""

        def of_rank(number):
            self._rank.number = number
            return function()

        with ThreadPoolExecutor(self._n) as pool:
            return list(pool.map(of_rank, range(self._n)))


def test_mutations_are_found_and_named(monkeypatch):
    threads, one = Threads(3), threading.Lock()
    monkeypatch.setattr(conform_pipelines, "dist", threads)

    def make(mutation):
        # Stages draw their weights from the one generator of the process.
        with one:
            return trial(mutation)

    given = batches()
    ranks = threads.run(lambda: {m: record(functools.partial(make, m), given, LIMIT) for m in MUTATIONS})
    for mutation, (kind, step, rank, reason) in MUTATIONS.items():
        model = Whole(whole(), MSE, N, is_sum=False, optimizer=sgd, max_norm=LIMIT)
        found, _ = compare([its[mutation] for its in ranks], model, batches(), max_norm=LIMIT, tolerance=1e-10)
        texts = "\n".join(map(str, found))
        assert (kind, step, rank) in [each[:3] for each in found], f"{mutation}: {texts}"
        assert reason in texts, f"{mutation}: {texts}"
        assert mutation != "stale" or "at the weights of rank 1 before the last update" in texts, texts


def test_a_hang_says_who_waits_for_what():
    with pytest.raises(NotThePipeline) as caught:
        check(functools.partial(trial, "hang"), patience=10.0)
    waits = {each.rank: each.reason for each in caught.value.findings if each.kind == "hang"}
    assert waits[2] == "waits in recv of [2, 6] float64 from rank 0"
    assert "waits in recv" in waits[0] and "from rank 1" in waits[0]
