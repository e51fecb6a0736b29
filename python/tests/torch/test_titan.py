"""`titan.pipeline_llm` instead of torchtitan's own: its model, loss, clipping and checkpoints on two ranks."""

import dataclasses
import functools
from pathlib import Path
import tempfile

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import titan  # noqa: E402
from torch.distributed.checkpoint import load, save  # noqa: E402
from torchtitan.config import ParallelismConfig  # noqa: E402
from torchtitan.distributed import parallel_dims as dims, utils  # noqa: E402
from torchtitan.protocols.model_spec import ModelSpec  # noqa: E402
from torchtitan.protocols.module import ModuleDict  # noqa: E402
from torch import nn  # noqa: E402

from ranks import on_ranks  # noqa: E402

SAMPLES, LENGTH, WIDTH, LAYERS, LIMIT, TOLERANCE = 4, 16, 8, 6, 0.5, 1e-12
CHIMERA = {"schedule": "chimera", "by_name": "1F1B"}
WAYS = [CHIMERA, {"schedule": "zb-v", "by_name": "ZBVZeroBubble"}, {"schedule": "v-half", "by_name": "ZBVZeroBubble", "csv": True}]


class Model(nn.Module):
    """A model with the names of torchtitan's, whose parts may be None. (Its own need compiled attention.)"""

    def __init__(self):
        super().__init__()
        make = functools.partial(nn.Linear, WIDTH, dtype=torch.float64)
        self.tok_embeddings = nn.Embedding(64, WIDTH, dtype=torch.float64)
        self.layers = ModuleDict({str(layer): make(WIDTH) for layer in range(LAYERS)})
        self.norm, self.lm_head = nn.LayerNorm(WIDTH, dtype=torch.float64), make(64)

    def forward(self, x, *, scale):
        x = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers.values():
            x = x + scale * torch.tanh(layer(x))
        return x if self.lm_head is None else self.lm_head(self.norm(x))

    def init_weights(self):
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.5)


class Config:
    layers = [None] * LAYERS


class Training:
    local_batch_size = SAMPLES


close = functools.partial(torch.testing.assert_close, rtol=TOLERANCE, atol=TOLERANCE)


def batch():
    torch.manual_seed(5)
    ids = torch.randint(0, 64, (SAMPLES, LENGTH + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_fn(output, target, global_valid_tokens):
    """A sum over tokens, divided by the tokens of all ranks, as torchtitan's, which computes in f32."""
    flat = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
    return flat / global_valid_tokens, {}


def configured(way, folder):
    """torchtitan's configuration of two ranks, each micro-batch of one sample."""
    dims.device_type = "cpu"
    parallel_dims = dims.ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=2, ep=1, world_size=2)
    parallelism = ParallelismConfig(pipeline_parallel_degree=2, pipeline_parallel_schedule=way["by_name"])
    if way.get("csv"):
        path = Path(folder) / f"{way['schedule']}.csv"
        path.write_text(chimera.schedule(way["schedule"], depth=2, micro_batches=SAMPLES).to_csv())
        parallelism = dataclasses.replace(parallelism, pipeline_parallel_schedule_csv=str(path))
    return parallel_dims, parallelism


def built(way, folder):
    """The steps of torchtitan's trainer: a model on the meta device, which is cut, and given weights after that."""
    parallel_dims, parallelism = configured(way, folder)
    own = pipeline.pipeline_llm if way.get("csv") else functools.partial(titan.pipeline_llm, schedule=way["schedule"])
    spec = ModelSpec("model", "small", Config, lambda module, **_: module, own, None, None)
    with torch.device("meta"):
        model = Model()
    schedule, parts, has_first, has_last = spec.pipelining_fn(
        model,
        parallel_dims=parallel_dims,
        training=Training,
        parallelism=parallelism,
        compile_config=None,
        ac_config=None,
        dump_folder=folder,
        device=torch.device("cpu"),
        model_config=Config,
        parallelize_fn=spec.parallelize_fn,
        loss_fn=loss_fn,
    )
    for part in parts:
        part.to_empty(device="cpu")
        # torchtitan gives the ranks of a pipeline different seeds.
        torch.manual_seed(dist.get_rank())
        part.init_weights()
    return schedule, parts, has_first, has_last, parallel_dims.get_mesh("pp")


def trained(way, folder):
    """Loss, norm, gradients before and after clipping, and weights of torchtitan's step."""
    schedule, parts, has_first, has_last, mesh = built(way, folder)
    x, y = batch()
    losses = [] if has_last else None
    schedule.step(
        arg_mbs=[(part,) for part in x.split(1)] if has_first else None,
        kwarg_mbs=[{"scale": 0.5} for _ in range(SAMPLES)],
        target_mbs=list(y.split(1)) if has_last else None,
        losses=losses,
        loss_kwargs={"global_valid_tokens": torch.tensor(SAMPLES * LENGTH)},
        return_outputs=False,
    )
    named = [(name, p) for part in parts for name, p in part.named_parameters()]
    grads = {name: p.grad.clone() for name, p in named}
    norm = utils.clip_grad_norm_([p for _, p in named], LIMIT, foreach=True, pp_mesh=mesh).item()
    clipped = {name: p.grad for name, p in named}
    save({"model": {name: p for name, p in named}}, checkpoint_id=str(Path(folder) / way["schedule"]))
    return torch.stack(losses).sum().item() if has_last else None, norm, grads, clipped, {name: p.detach() for name, p in named}


def all_ways(folder):
    return [trained(way, folder) for way in WAYS]


def whole(weights):
    model = Model()
    model.load_state_dict(weights)
    x, y = batch()
    loss, _ = loss_fn(model(x, scale=0.5), y, SAMPLES * LENGTH)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def check(way, theirs, folder):
    weights = {name: tensor for *_, own in theirs for name, tensor in own.items()}
    loss, grads = whole(weights)
    norm = nn.utils.get_total_norm(list(grads.values())).item()
    for its_loss, its_norm, own, clipped, its_weights in theirs:
        assert its_loss is None or abs(its_loss - loss) < TOLERANCE, way
        assert abs(its_norm - norm) < TOLERANCE, way
        for name, grad in own.items():
            close(grad, grads[name], msg=lambda m: f"{way}: {name}: {m}")
            close(clipped[name], grads[name] * min(1, LIMIT / (norm + 1e-6)))
            # Replicas are equal to the bit.
            assert torch.equal(its_weights[name], weights[name])
    # torchtitan logs on the last rank, or on the first of a V.
    assert theirs[0 if way["by_name"] == "ZBVZeroBubble" else 1][0] is not None
    state = {"model": {name: torch.zeros_like(tensor) for name, tensor in weights.items()}}
    load(state, checkpoint_id=str(Path(folder) / way["schedule"]), no_dist=True)
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in weights.items())


def test_torchtitans_step_is_that_of_the_whole_model():
    with tempfile.TemporaryDirectory() as folder:
        for way, *theirs in zip(WAYS, *on_ranks(2, all_ways, folder)):
            check(way, theirs, folder)


class Dims:
    pp = 2

    def get_mesh(self, _):
        return self

    def size(self):
        return 2


def refused(**changed):
    parallelism = ParallelismConfig(**{"pipeline_parallel_degree": 2, **changed.pop("parallelism", {})})
    training, ours = type("Training", (), {"local_batch_size": changed.pop("samples", 4)}), {**changed}
    rest = dict.fromkeys(("compile_config", "ac_config", "dump_folder", "device", "parallelize_fn", "loss_fn"))
    titan.pipeline_llm(None, parallel_dims=Dims(), training=training, parallelism=parallelism, model_config=Config, **rest, **ours)


@pytest.mark.parametrize(
    "why, given",
    [
        ("3 is no multiple of", dict(samples=3, parallelism={"pipeline_parallel_microbatch_size": 2})),
        (r"logs the loss on rank 1.*on \[0\]: set `pipeline_parallel_schedule` to \"ZBVZeroBubble\"", dict(schedule="zb-v")),
        ("names 1 parts, and the schedule has 2 stages", dict(parallelism={"module_fqns_per_model_part": [["norm"]]})),
        ("the timetable has 4 workers and 8 micro-batches.*torchtitan 2 and 4", dict(schedule=chimera.schedule("1f1b", micro_batches=8))),
        ("unknown|no schedule|is none", dict(schedule="nonesuch")),
    ],
)
def test_what_cannot_be_is_refused(why, given):
    with pytest.raises(chimera.Error, match=why):
        refused(**given)
