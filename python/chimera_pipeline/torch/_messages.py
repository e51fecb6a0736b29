"""Messages between workers: activations and their gradients, over torch.distributed."""

from __future__ import annotations

from typing import Any, Tuple

import torch
import torch.distributed as dist

from .. import Error

_DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool]
"""Types of activations, of which a message tells the place in this list."""

_MOST_DIMS = 8

Channel = Tuple[str, int, int]
"""Kind, pipe and stage of the tokens that a channel carries."""


class Coming:
    """A tensor under way."""

    def __init__(self, work: Any, tensor: torch.Tensor, parts: int) -> None:
        self._work, self._tensor, self._parts = work, tensor, parts

    def wait(self) -> list[torch.Tensor]:
        self._work.wait()
        return list(self._tensor.chunk(self._parts)) if self._parts > 1 else [self._tensor]


class Messages:
    """Sends and receives of one rank.

    Every channel (kind, pipe and stage of its tokens) has a tag of its own, within which messages keep their order.
    Where the transport knows no tags, the order of the instructions is that of the messages.

    `ranks` are those of the workers. Shape and type go before the first activation of a channel in a step. A gradient has
    those of its activation.
    """

    def __init__(
        self, file: dict[str, Any], ranks: list[int], group: Any, device: torch.device, is_tagged: bool
    ) -> None:
        self._tokens, self._ranks, self._group, self._device = file["tokens"], ranks, group, device
        channels = {self._channel(i["token"]) for row in file["rows"] for i in row["instructions"] if i["do"] == "send"}
        self._tags = {channel: tag if is_tagged else 0 for tag, channel in enumerate(sorted(channels))}
        self._shapes: dict[Channel, tuple[torch.Size, torch.dtype]] = {}
        self._sent: list[tuple[Any, torch.Tensor]] = []

    def _channel(self, token: int) -> Channel:
        about = self._tokens[token]
        return about["kind"], about["pipe"], about["stage"]

    def begin(self) -> None:
        """Forgets the shapes of the last step."""
        self._shapes.clear()

    def end(self) -> None:
        """Waits until all that was sent is on its way."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def made(self, pipe: int, stage: int, output: torch.Tensor) -> None:
        """Remembers the activation of a unit, which its gradient will be like."""
        self._shapes["gradient", pipe, stage + 1] = output.shape, output.dtype

    def send(self, token: int, to: int, units: list[torch.Tensor]) -> None:
        channel = self._channel(token)
        if channel[0] == "activation":
            shape, dtype = units[0].shape, units[0].dtype
            is_first = channel not in self._shapes
            known = self._shapes.setdefault(channel, (shape, dtype))
            if known != (shape, dtype):
                raise Error(
                    f"stage {channel[2]} made {_words(shape, dtype)} after {_words(*known)}: "
                    "pad the samples, so that all micro-batches of a step have one shape"
                )
            if is_first:
                self._put(_described(shape, dtype, self._device), to, channel)
        self._put((units[0] if len(units) == 1 else torch.cat(units)).contiguous(), to, channel)

    def _put(self, tensor: torch.Tensor, to: int, channel: Channel) -> None:
        work = dist.isend(tensor, self._ranks[to], group=self._group, tag=self._tags[channel])
        self._sent = [(w, t) for w, t in self._sent if not w.is_completed()]
        self._sent.append((work, tensor))

    def recv(self, token: int, peer: int) -> Coming:
        channel, source = self._channel(token), self._ranks[peer]
        if channel not in self._shapes:
            header = torch.empty(2 + _MOST_DIMS, dtype=torch.int64, device=self._device)
            dist.recv(header, source, group=self._group, tag=self._tags[channel])
            dtype, n_dims, *dims = header.tolist()
            self._shapes[channel] = torch.Size(dims[:n_dims]), _DTYPES[dtype]
        shape, dtype = self._shapes[channel]
        parts = len(self._tokens[token]["units"])
        tensor = torch.empty((parts * shape[0], *shape[1:]), dtype=dtype, device=self._device)
        return Coming(dist.irecv(tensor, source, group=self._group, tag=self._tags[channel]), tensor, parts)


def _described(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not 1 <= len(shape) <= _MOST_DIMS or dtype not in _DTYPES:
        types = ", ".join(str(dtype) for dtype in _DTYPES if dtype.is_floating_point)
        raise Error(
            f"an activation of shape {_words(shape, dtype)} cannot be sent: hand on 1 to {_MOST_DIMS} dimensions, of one of {types}"
        )
    numbers = [_DTYPES.index(dtype), len(shape), *shape, *[0] * (_MOST_DIMS - len(shape))]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{list(shape)} of {dtype}"
