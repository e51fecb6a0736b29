"""Models of transformers, cut by one call, train in a pipeline as they do whole: losses, gradients and weights in f64."""

import functools
import traceback

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import cut, train  # noqa: E402
from chimera_pipeline.torch._train import _loss, _shifted  # noqa: E402

from architectures import ARCHITECTURES  # noqa: E402
from ranks import on_ranks  # noqa: E402

STEPS, SAMPLES, TOLERANCE = 5, 8, 1e-12

SCHEDULES = {
    "1f1b": {},
    "chimera": {"scaling": "direct"},
    "chimera of four pipes": {"pipes": 4, "scaling": "direct"},
    "dualpipe": {},
    "zb-v": {},
    "hanayo": {"waves": 1},
}


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def made(name):
    torch.manual_seed(5)
    return ARCHITECTURES[name]().double()


def batch(model, step):
    """Another length in each step, samples that end early, and labels that do not count."""
    torch.manual_seed(100 + step)
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return {"pixel_values": torch.randn(SAMPLES, 3, size, size).double(), "labels": torch.randint(5, (SAMPLES,))}
    length = (7, 5, 7, 6, 5)[step]
    ids, labels = (torch.randint(3, 96, (SAMPLES, length)) for _ in range(2))
    labels[torch.rand(SAMPLES, length) < 0.3] = -100
    mask = torch.ones(SAMPLES, length, dtype=torch.int64)
    mask[::3, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def whole(model):
    """Losses, the gradients of the last step, and weights of the whole model."""
    loss_fn, count = _loss(model, {})
    optimizer, losses = adamw(model.parameters()), []
    for step in range(STEPS):
        optimizer.zero_grad()
        given = batch(model, step)
        labels = given.pop("labels")
        n = count(labels) if callable(count) else (labels != -100).sum()
        loss = loss_fn(model(**_shifted(model, labels, given)), labels) / n
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: (p.grad, p.detach().clone()) for n, p in model.named_parameters(remove_duplicate=False)}


def check(name, schedules):
    """Trains one architecture under each schedule, and compares what this rank has with the whole model."""
    model = made(name)
    begun = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = [whole(made(name)) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(wanted)
    losses, named = wanted[0]
    cuts = {}
    for schedule in schedules:
        model.load_state_dict(begun)
        kind, shape = schedule.split()[0], SCHEDULES[schedule]
        n_stages = chimera.schedule(kind, depth=4, micro_batches=8, **shape).stages
        pieces = cuts[n_stages] = cuts.get(n_stages) or cut(model, n_stages)
        runtime = train(pieces, kind, micro_batches=8, shape=shape, optimizer=adamw)
        close = functools.partial(torch.testing.assert_close, rtol=TOLERANCE, atol=TOLERANCE)
        for step in range(STEPS):
            loss = runtime.step(**batch(model, step))
            close(loss, losses[step], msg=lambda m: f"{schedule}: loss of step {step}: {m}")
        for stage, module in runtime.modules.items():
            for key, parameter in module.named_parameters():
                grad, weight = named[key]
                assert (parameter.grad is None) == (grad is None), f"{schedule}: {key}"
                if grad is not None:
                    close(parameter.grad, grad, msg=lambda m: f"{schedule}: gradient of {key} in stage {stage}: {m}")
                close(parameter.detach(), weight, msg=lambda m: f"{schedule}: {key} in stage {stage}: {m}")
        state = runtime.state_dict()
        assert dist.get_rank() != 0 or state.keys() == {n for n, _ in model.state_dict().items()}, f"{schedule}: names"


def check_all(names):
    """What each architecture came to, so that one that fails stops no other."""
    # Some models compute norms in 32 bits, which makes 1e-9 of the last bit of a sum: here they do in 64.
    torch.Tensor.float = torch.Tensor.double
    told = {}
    for name in names:
        try:
            check(name, list(SCHEDULES))
            told[name] = None
        except Exception:
            told[name] = traceback.format_exc()
        failed = [None] * dist.get_world_size()
        dist.all_gather_object(failed, told[name])
    return told


@pytest.fixture(scope="module")
def results(request):
    names = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    return on_ranks(4, check_all, [name for name in ARCHITECTURES if name in names])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_of_transformers_trains_as_it_does_whole(results, name):
    for told in results:
        assert told[name] is None, told[name]
