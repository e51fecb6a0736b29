"""Models of transformers, cut by one call, train in a pipeline as they do whole: losses, gradients and weights in f64."""

import traceback

import chimera_pipeline as chimera
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch.distributed as dist  # noqa: E402
from chimera_pipeline.torch import cut, train  # noqa: E402
from chimera_pipeline.torch._train import _loss, _shifted  # noqa: E402

import architectures  # noqa: E402
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
    # Gradients that are 0 but for rounding, such as of biases of keys, would become steps with a smaller `eps`.
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-5)


def made(name):
    torch.manual_seed(5)
    return ARCHITECTURES[name]().double()


def batch(model, step):
    """Another length in each step."""
    torch.manual_seed(100 + step)
    return architectures.batch(model, SAMPLES, (7, 6, 7, 8, 6)[step])


def whole(model):
    """Losses and norms, the gradients of the last step, and weights of the whole model."""
    loss_fn, count = _loss(cut(model, 1), {})
    optimizer, losses = adamw(model.parameters()), []
    for step in range(STEPS):
        optimizer.zero_grad()
        given = batch(model, step)
        labels = given.pop("labels")
        loss = loss_fn(model(**_shifted(model, labels, given)), labels) / count(labels)
        loss.backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads).item()
        optimizer.step()
        losses.append((loss.item(), norm))
    return losses, {n: (p.grad, p.detach().clone()) for n, p in model.named_parameters(remove_duplicate=False)}


def check(name, schedules):
    """Trains one architecture under each schedule; returns how what this rank has differs from the whole model."""
    model = made(name)
    begun = {key: value.clone() for key, value in model.state_dict().items()}
    wanted = [whole(made(name)) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(wanted)
    losses, named = wanted[0]
    cuts, differences = {}, []

    def close(ours, theirs, about, size=1.0):
        try:
            torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE * max(size, 1.0))
        except AssertionError as error:
            differences.append(f"{about}: {error}")

    for schedule in schedules:
        model.load_state_dict(begun)
        kind, shape = schedule.split()[0], SCHEDULES[schedule]
        n_stages = chimera.schedule(kind, depth=4, micro_batches=8, **shape).stages
        pieces = cuts[n_stages] = cuts.get(n_stages) or cut(model, n_stages)
        runtime = train(pieces, kind, micro_batches=8, shape=shape, optimizer=adamw)
        for step in range(STEPS):
            loss = runtime.step(**batch(model, step))
            close((loss, runtime.last.grad_norm), losses[step], f"{schedule}: loss and norm of step {step}")
        for stage, module in runtime.modules.items():
            for key, parameter in module.named_parameters():
                grad, weight = named[key]
                close(parameter.grad, grad, f"{schedule}: gradient of {key} in stage {stage}", losses[-1][1])
                close(parameter.detach(), weight, f"{schedule}: {key} in stage {stage}")
        names = runtime.state_dict().keys()
        if dist.get_rank() == 0 and names != begun.keys():
            differences.append(f"{schedule}: names {sorted(names ^ begun.keys())}")
    return differences


def check_all(names):
    """What each architecture came to, so that one that fails stops no other."""
    # Some models compute norms in 32 bits, which makes 1e-9 of the last bit of a sum: here they do in 64.
    torch.Tensor.float, torch.float32 = torch.Tensor.double, torch.float64
    told = {}
    for name in names:
        try:
            told[name] = "\n".join(check(name, list(SCHEDULES)))
        except Exception:
            told[name] = traceback.format_exc()
        failed = [None] * dist.get_world_size()
        dist.all_gather_object(failed, told[name])
        if dist.get_rank() == 0:
            print(name, max(failed, key=len)[:2000] or "ok", flush=True)
    return told


@pytest.fixture(scope="module")
def results(request):
    names = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    return on_ranks(4, check_all, [name for name in ARCHITECTURES if name in names])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_of_transformers_trains_as_it_does_whole(results, name):
    for told in results:
        assert not told[name], told[name]
