"""torchtitan's door: `pipeline_llm` as the `pipelining_fn` of a ModelSpec. It knows torchtitan 0.3."""

from __future__ import annotations

import functools
from typing import Any, Callable, Tuple, Union

import torch

from .. import Error, Timetable, schedule as make_schedule
from ._pytorch import PyTorchRuntime, pytorch_runtime

Made = Tuple[Any, "list[torch.nn.Module]", bool, bool]


def pipeline_llm(
    model: torch.nn.Module,
    *,
    parallel_dims: Any,
    training: Any,
    parallelism: Any,
    compile_config: Any,
    ac_config: Any,
    dump_folder: str,
    device: torch.device,
    model_config: Any,
    parallelize_fn: Callable[..., torch.nn.Module],
    loss_fn: Callable[..., Any],
    schedule: Union[str, Timetable] = "chimera",
    pipes: int = 2,
) -> Made:
    """The pipeline of a language model, by a proven program: a `pipelining_fn` of torchtitan.

    ```python
    spec = dataclasses.replace(spec, pipelining_fn=chimera_pipeline.torch.titan.pipeline_llm)
    spec = dataclasses.replace(spec, pipelining_fn=functools.partial(pipeline_llm, schedule="dualpipe"))
    ```

    `schedule` is a name of `chimera.schedules()`, or a timetable with as many workers and micro-batches as torchtitan has.
    torchtitan's own `pipeline_parallel_schedule` only says which rank logs: `ZBVZeroBubble` for rank 0, others for the last.

    torchtitan's `clip_grad_norm_` would count each replica of a stage: this replaces it by one that counts them once.
    """
    if parallel_dims.pp < 2:
        raise Error(f"torchtitan's pipeline has {parallel_dims.pp} ranks: set `pipeline_parallel_degree` to 2 or more")
    mesh = parallel_dims.get_mesh("pp")
    program = _timetable(schedule, pipes, mesh.size(), training, parallelism).lower()
    _check_logging_rank(program.replicas(program.stages - 1), mesh.size(), parallelism.pipeline_parallel_schedule)
    names = _names_of_modules(program.stages, parallel_dims, parallelism, model_config)

    def stage(number: int) -> torch.nn.Module:
        from torchtitan.distributed.pipeline_parallel import _split_module

        return parallelize_fn(
            _split_module(model, names[number]),
            parallel_dims=parallel_dims,
            training=training,
            parallelism=parallelism,
            compile_config=compile_config,
            ac_config=ac_config,
            dump_folder=dump_folder,
        )

    # torchtitan's losses are sums divided by the tokens of all ranks, so that micro-batches add up.
    runtime = pytorch_runtime(
        program, stage, lambda *given, **options: loss_fn(*given, **options)[0], device=device, group=mesh.get_group(), scale_grads=False
    )
    _count_replicas_once(runtime)
    # torchtitan takes the last part for that with the head.
    parts = [module for _, module in sorted(runtime.modules.items())]
    return runtime.schedule, parts, 0 in runtime.modules, program.stages - 1 in runtime.modules


def _timetable(schedule: str | Timetable, pipes: int, depth: int, training: Any, parallelism: Any) -> Timetable:
    samples, size = training.local_batch_size, parallelism.pipeline_parallel_microbatch_size
    if samples % size:
        raise Error(f"`local_batch_size` {samples} is no multiple of `pipeline_parallel_microbatch_size` {size}: change one of them")
    n = samples // size
    if isinstance(schedule, str):
        return make_schedule(schedule, depth=depth, micro_batches=n, pipes=pipes, scaling="direct")
    if (schedule.depth, schedule.micro_batches) != (depth, n):
        raise Error(
            f"the timetable has {schedule.depth} workers and {schedule.micro_batches} micro-batches, and torchtitan {depth} and {n}: make it "
            f"with depth={depth} and micro_batches={n}"
        )
    return schedule


def _check_logging_rank(with_loss: list[int], depth: int, name: str) -> None:
    """Raises where the rank that torchtitan lets log has no loss."""
    logging = 0 if name == "ZBVZeroBubble" else depth - 1
    if logging not in with_loss:
        other = "ZBVZeroBubble" if 0 in with_loss else "1F1B"
        raise Error(
            f"torchtitan logs the loss on rank {logging} of the pipeline, and this schedule has it on {with_loss}: set "
            f'`pipeline_parallel_schedule` to "{other}"'
        )


def _names_of_modules(n_stages: int, parallel_dims: Any, parallelism: Any, model_config: Any) -> list[list[str]]:
    """The modules of each stage: those that the configuration names, or torchtitan's balanced ones."""
    from torchtitan.distributed.pipeline_parallel import _generate_llm_fqn_per_model_part

    given: list[list[str]] | None = parallelism.module_fqns_per_model_part
    if given is not None and len(given) != n_stages:
        raise Error(f"`module_fqns_per_model_part` names {len(given)} parts, and the schedule has {n_stages} stages: name {n_stages}")
    if given is not None:
        return given
    first, last = parallelism.pipeline_parallel_first_stage_less_layers, parallelism.pipeline_parallel_last_stage_less_layers
    made: list[list[str]] = _generate_llm_fqn_per_model_part(n_stages, len(model_config.layers), first, last)
    return made


def _count_replicas_once(runtime: PyTorchRuntime) -> None:
    """Has torchtitan's trainer clip by the norm of the model."""
    from torchtitan.distributed import utils

    program = runtime.program
    if all(len(program.replicas(stage)) == 1 for stage in range(program.stages)):
        return
    whole = getattr(utils.clip_grad_norm_, "of_torchtitan", utils.clip_grad_norm_)

    @functools.wraps(whole)
    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, *rest: Any, **options: Any) -> torch.Tensor:
        given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        own = {id(p) for module in runtime.modules.values() for p in module.parameters()}
        if any(id(p) not in own for p in given):
            # Another model's.
            norm: torch.Tensor = whole(given, max_norm, norm_type, *rest, **options)
            return norm
        if norm_type != 2.0:
            raise Error(f"`norm_type` is {norm_type}, and replicas are counted once in the norm of type 2 alone: choose that")
        dtype = given[0].dtype if given else torch.float32
        return torch.tensor(runtime.clip_grad_norm_(max_norm), dtype=dtype, device=runtime.device)

    clip_grad_norm_.of_torchtitan = whole  # type: ignore[attr-defined]
    utils.clip_grad_norm_ = clip_grad_norm_
