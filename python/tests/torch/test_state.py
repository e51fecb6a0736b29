"""What a runtime keeps and takes: buffers of recomputed stages, saved states, and which parameters are trained."""

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import Runtime  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402
from small import MSE, WIDTH, batch, linear, sgd  # noqa: E402


def program(name="1f1b", depth=2, recompute="none"):
    return chimera.schedule(name, depth=depth, micro_batches=4).passes(recompute=recompute).lower()


class Counting(nn.Module):
    """An output that depends on how many forwards there were."""

    def __init__(self, stage):
        super().__init__()
        self.linear = linear(stage)
        self.register_buffer("n", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.n.data += 1
        return self.linear(x) * self.n.clone()


def recomputed_with_buffers_of_then():
    results = []
    for recompute in ("none", "full"):
        runtime = Runtime(program(recompute=recompute), Counting, MSE, sgd)
        losses = [runtime.step(*batch()) for _ in range(2)]
        assert all(module.n == 8 for module in runtime.modules.values())
        results.append((losses, [p.grad for module in runtime.modules.values() for p in module.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def loaded_by_all_or_none():
    runtime, rank = Runtime(program(), linear, MSE, sgd), dist.get_rank()
    state = [runtime.state_dict()]
    dist.broadcast_object_list(state)
    state = {name: tensor + 1 for name, tensor in state[0].items()}
    for wrong, words in (
        ({name: tensor for name, tensor in state.items() if name != "1.0.bias"}, "the state of stage 1 lacks `0.bias`"),
        ({**state, "1.foo": torch.ones(1)}, "the state of stage 1 has, beside those of the module, `foo`"),
        ({**state, "1.0.weight": torch.ones(2, 2)}, r"a `0.weight` of stage 1 of shape \[2, 2\], and the module one of \[4, 4\]"),
    ):
        told = words if rank == 1 else f"rank 1 of the group could not load its stages: Error: .*{words}"
        with pytest.raises(chimera.Error, match=told):
            runtime.load_state_dict(wrong)
        for stage, module in runtime.modules.items():
            assert torch.equal(module[0].weight, linear(stage)[0].weight)
    for wrong in (None, {0: torch.ones(1)}, [1]):
        with pytest.raises(chimera.Error, match="give every rank what `state_dict` returned on rank 0"):
            runtime.load_state_dict(wrong)
    runtime.load_state_dict(state)
    for stage, module in runtime.modules.items():
        assert torch.equal(module[0].weight, linear(stage)[0].weight + 1)


def frozen_later_and_unfrozen():
    own = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    make = lambda trained: Runtime(program(depth=1), lambda s: linear(s).requires_grad_(trained), lambda o, _: o.sum(), sgd, group=own)
    runtime = make(True)
    for trained in (False, True):
        before = runtime.modules[0][0].weight.detach().clone()
        runtime.modules[0].requires_grad_(trained)
        runtime.step(*batch())
        assert torch.equal(runtime.modules[0][0].weight, before) != trained
    runtime = make(False)
    runtime.modules[0].requires_grad_(True)
    with pytest.raises(chimera.Error, match="`0.weight` of stage 0 needs a gradient, and did not.*make a new Runtime"):
        runtime.step(*batch())


def run_all():
    recomputed_with_buffers_of_then()
    loaded_by_all_or_none()
    frozen_later_and_unfrozen()


def test_state_on_two_ranks():
    on_ranks(2, run_all)
