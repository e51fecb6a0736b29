"""Orders of other frameworks: read from their own objects, or their rules retold where a package gives none."""

from ._deepspeed import deepspeed
from ._dualpipe import dualpipe
from ._megatron import megatron
from ._nanotron import nanotron
from ._pytorch import from_actions, pytorch, pytorch_class, torchtitan_csv

__all__ = ["deepspeed", "dualpipe", "from_actions", "megatron", "nanotron", "pytorch", "pytorch_class", "torchtitan_csv"]
