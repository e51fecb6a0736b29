"""Messages of a rank as they are waited for, written where another process can read them."""

from __future__ import annotations

import os
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_MESSAGES = ("isend", "irecv", "send", "recv")
_TOGETHER = ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "reduce", "reduce_scatter_tensor", "gather", "scatter", "barrier")
_SIZE = 200


class Status:
    """One line of a rank, in a file that it overwrites."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY)
        self._count = 0
        self.is_told = False
        """Whether a call goes on that is written."""

    def write(self, text: str) -> None:
        """Says what the rank does now. A count tells two waits for like messages apart."""
        self._count += 1
        os.pwrite(self._file, f"{self._count} {text}"[:_SIZE].ljust(_SIZE).encode(), 0)


def read_status(path: str) -> tuple[str, str]:
    """The count of a rank's line, and what it does."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            count, _, text = file.read().strip().partition(" ")
    except FileNotFoundError:
        return "0", "has not begun"
    return count, text or "has not begun"


def watch(status: Status) -> None:
    """Has the functions of torch.distributed write what they wait for."""
    for name in (*_MESSAGES, *_TOGETHER):
        original = getattr(distributed_c10d, name)
        watched = _watched(name, original, status)
        # PyTorch looks them up in both.
        setattr(distributed_c10d, name, watched)
        setattr(dist, name, watched)


def _watched(name: str, original: Callable[..., Any], status: Status) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # PyTorch's functions call one another.
        if status.is_told:
            return original(*args, **kwargs)
        status.is_told = True
        try:
            return told(*args, **kwargs)
        finally:
            status.is_told = False

    def told(*args: Any, **kwargs: Any) -> Any:
        text = f"waits in {name} {_about(name, args, kwargs)}".rstrip()
        is_later = name in ("isend", "irecv") or kwargs.get("async_op", False)
        if is_later:
            work = original(*args, **kwargs)
            return None if work is None else _Work(work, text, status)
        status.write(text)
        made = original(*args, **kwargs)
        status.write("computes")
        return made

    return call


class _Work:
    """A request of torch.distributed whose wait is written."""

    def __init__(self, work: Any, text: str, status: Status) -> None:
        self._work, self._text, self._status = work, text, status

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self._status.write(self._text)
        done = self._work.wait(*args, **kwargs)
        self._status.write("computes")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _about(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The tensor of a call and the rank at its other end."""
    tensors = [given for given in (*args, *kwargs.values()) if isinstance(given, torch.Tensor)]
    text = f"of {list(tensors[0].shape)} {str(tensors[0].dtype).partition('.')[2]}" if tensors else ""
    if name not in _MESSAGES:
        return text
    keys = ("dst", "group_dst") if name.endswith("send") else ("src", "group_src")
    peers = [kwargs[key] for key in keys if kwargs.get(key) is not None] or [given for given in args[1:2] if isinstance(given, int)]
    end = "to" if name.endswith("send") else "from"
    return f"{text} {end} rank {peers[0]}" if peers else text
