"""Messages between workers: activations and their gradients, over torch.distributed."""

from __future__ import annotations

import pickle
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import Error
from ._trees import Around, Like, Value

Channel = Tuple[str, int, int]
"""Kind, pipe and stage of the tokens that a channel carries."""

Known = Tuple[Tuple[Like, ...], Optional[Around]]
"""Shapes and types of the tensors of a unit, and what is around them."""

_FAILED = 0
"""In the place of the length of a description: the rank has failed, and nothing follows."""

_ALIGNED = 16
"""Places in bytes of tensors within one message are multiples of this."""


class Coming:
    """Tensors under way."""

    def __init__(self, work: Any, buffer: torch.Tensor, units: list[Known], is_gradient: bool) -> None:
        self._work, self._buffer, self._units, self._is_gradient = work, buffer, units, is_gradient

    def wait(self) -> list[Any]:
        """The value of each unit, or the gradients of each."""
        self._work.wait()
        tensors = iter(_unpacked(self._buffer, [like for likes, _ in self._units for like in likes]))
        if self._is_gradient:
            return [[next(tensors) for _ in likes] for likes, _ in self._units]
        return [Value([next(tensors) for _ in likes], around, tuple(l.needs_grad for l in likes)) for likes, around in self._units]


class Failed(Exception):
    """Another rank could not make what is to be received."""


class Messages:
    """Sends and receives of one rank.

    Every channel (kind, pipe and stage of its tokens) has a tag of its own, within which messages keep their order.
    Where the transport knows no tags, the order of the instructions is that of the messages.

    `ranks` are those of the workers. An activation of a unit whose signature is new goes with a description of its shapes
    and types, which both ends remember. A gradient has those of its activation. So both ends know the size of each message
    before, also where a rank has failed: it sends zeros.
    """

    def __init__(
        self, file: dict[str, Any], ranks: list[int], group: Any, device: torch.device, is_tagged: bool
    ) -> None:
        self._tokens, self._ranks, self._group, self._device = file["tokens"], ranks, group, device
        channels = {self._channel(i["token"]) for row in file["rows"] for i in row["instructions"] if i["do"] == "send"}
        self._tags = {channel: tag if is_tagged else 0 for tag, channel in enumerate(sorted(channels))}
        self._known: Dict[Tuple[int, int, Any], Known] = {}
        self._signatures: Sequence[Any] = ()
        self._is_described = True
        self._activations: Dict[Tuple[int, int, int], Optional[Known]] = {}
        self._sent: List[Tuple[Any, torch.Tensor]] = []

    def _channel(self, token: int) -> Channel:
        about = self._tokens[token]
        return about["kind"], about["pipe"], about["stage"]

    def begin(self, signatures: Sequence[Any], is_described: bool) -> None:
        """Begins a step whose units have these signatures; `is_described` says whether activations go with descriptions."""
        self._signatures, self._is_described = signatures, is_described
        self._activations.clear()

    def end(self) -> None:
        """Waits until all that was sent is on its way."""
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()

    def forget(self) -> None:
        """Forgets all descriptions, which after a failure not all ranks have."""
        self._known.clear()

    def made(self, pipe: int, stage: int, unit: int, value: Value | None) -> None:
        """Remembers the activation of a unit, which its gradient will be like; None if this rank failed to make it."""
        key = pipe, stage, self._signatures[unit]
        if value is None:
            self._activations[pipe, stage, unit] = None if self._is_described else self._known.get(key)
            return
        known = value.likes(), value.around
        self._activations[pipe, stage, unit] = known
        if self._is_described:
            self._known[key] = known
        elif self._known.get(key) != known:
            self._activations[pipe, stage, unit] = self._known[key]
            raise Error(
                f"stage {stage} made {_words(known)} of micro-batches of which it made {_words(self._known[key])} before: if shapes depend "
                "on more than the shapes of the batch, give dynamic_shapes=True"
            )

    def send(self, token: int, to: int, units: list[Any] | None) -> None:
        """Sends the value of each unit, or the gradients of each; None where this rank failed to make them."""
        channel = kind, pipe, stage = self._channel(token)
        numbers = self._tokens[token]["units"]
        if kind == "activation":
            if self._is_described and not self._describe([self._activations[pipe, stage, u] for u in numbers], to, channel):
                return
            tensors = [tensor for value in units for tensor in value.tensors] if units is not None else None
        else:
            tensors = [tensor for grads in units for tensor in grads] if units is not None else None
        likes = self._likes(channel, numbers)
        if likes is None:
            return
        if tensors is None:
            tensors = [torch.zeros(like.shape, dtype=like.dtype, device=self._device) for like in likes]
        if tensors:
            self._put(_packed(tensors), to, channel)

    def _describe(self, units: list[Optional[Known]], to: int, channel: Channel) -> bool:
        """Sends a description; False if there is none."""
        words = b"" if None in units else pickle.dumps(units)
        self._put(torch.tensor([len(words) or _FAILED], dtype=torch.int64, device=self._device), to, channel)
        if words:
            self._put(torch.frombuffer(bytearray(words), dtype=torch.uint8).to(self._device), to, channel)
        return bool(words)

    def _put(self, tensor: torch.Tensor, to: int, channel: Channel) -> None:
        work = dist.isend(tensor, self._ranks[to], group=self._group, tag=self._tags[channel])
        self._sent = [(w, t) for w, t in self._sent if not w.is_completed()]
        self._sent.append((work, tensor))

    def recv(self, token: int, peer: int) -> Coming | list[Any]:
        """What comes from a peer. Raises `Failed` if that has failed and sends nothing."""
        channel = kind, pipe, stage = self._channel(token)
        numbers = self._tokens[token]["units"]
        if kind == "activation":
            self._learn(channel, numbers, peer)
        likes = self._likes(channel, numbers)
        if likes is None:
            raise Failed
        is_gradient = kind == "gradient"
        units = [self._of_unit(channel, unit) for unit in numbers]
        if not likes:
            return [[] if is_gradient else Value([], known[1], ()) for known in units if known is not None]
        buffer = _empty(likes, self._device)
        work = dist.irecv(buffer, self._ranks[peer], group=self._group, tag=self._tags[channel])
        return Coming(work, buffer, [known for known in units if known is not None], is_gradient)

    def _learn(self, channel: Channel, numbers: list[int], peer: int) -> None:
        """What activations are like, from their description or from before."""
        _, pipe, stage = channel
        if not self._is_described:
            for unit in numbers:
                self._activations[pipe, stage, unit] = self._known[pipe, stage, self._signatures[unit]]
            return
        length = torch.empty(1, dtype=torch.int64, device=self._device)
        self._get(length, peer, channel)
        if length.item() == _FAILED:
            self._activations.update({(pipe, stage, unit): None for unit in numbers})
            return
        words = torch.empty(int(length.item()), dtype=torch.uint8, device=self._device)
        self._get(words, peer, channel)
        for unit, known in zip(numbers, pickle.loads(words.cpu().numpy().tobytes())):
            self._activations[pipe, stage, unit] = self._known[pipe, stage, self._signatures[unit]] = known

    def _get(self, tensor: torch.Tensor, peer: int, channel: Channel) -> None:
        dist.recv(tensor, self._ranks[peer], group=self._group, tag=self._tags[channel])

    def _likes(self, channel: Channel, numbers: list[int]) -> list[Like] | None:
        """Shapes and types of the tensors of a message; None if there is no message, because its activation was not made."""
        units = [self._of_unit(channel, unit) for unit in numbers]
        return None if None in units else [like for known in units if known is not None for like in known[0]]

    def _of_unit(self, channel: Channel, unit: int) -> Known | None:
        kind, pipe, stage = channel
        known = self._activations[pipe, stage - (kind == "gradient"), unit]
        if known is None or kind == "activation":
            return known
        return tuple(like for like in known[0] if like.needs_grad), None


def _places(likes: Sequence[Like]) -> tuple[list[int], int]:
    """Where tensors are within the bytes of one message, and how many bytes it has."""
    places, end = [], 0
    for like in likes:
        places.append(end)
        end += -(-_n_bytes(like) // _ALIGNED) * _ALIGNED
    return places, max(end, 1)


def _n_bytes(like: Like) -> int:
    n: int = like.dtype.itemsize
    for length in like.shape:
        n *= length
    return n


def _packed(tensors: list[torch.Tensor]) -> torch.Tensor:
    """One tensor as it is, several one after another as bytes."""
    if len(tensors) == 1:
        return _bytes(tensors[0])
    likes = [Like(tuple(tensor.shape), tensor.dtype, False) for tensor in tensors]
    places, length = _places(likes)
    buffer = torch.empty(length, dtype=torch.uint8, device=tensors[0].device)
    for tensor, like, place in zip(tensors, likes, places):
        buffer[place : place + _n_bytes(like)].copy_(_bytes(tensor))
    return buffer


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _empty(likes: Sequence[Like], device: torch.device) -> torch.Tensor:
    length = _n_bytes(likes[0]) if len(likes) == 1 else _places(likes)[1]
    return torch.empty(length, dtype=torch.uint8, device=device)


def _unpacked(buffer: torch.Tensor, likes: Sequence[Like]) -> list[torch.Tensor]:
    if len(likes) == 1:
        return [buffer.view(likes[0].dtype).view(likes[0].shape)]
    # Each counts by itself whether it is changed in place: autograd would take a change of one for one of all.
    return [
        buffer[place : place + _n_bytes(like)].view(like.dtype).view(like.shape).data
        for like, place in zip(likes, _places(likes)[0])
    ]


def _words(known: Known) -> str:
    return ", ".join(map(str, known[0])) or "no tensors"
