"""Small batches on which models of transformers can be tried."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_N_TOKENS = 8
_SIZE = 32
"""Height and width of an image for models that take any."""


def of(model: nn.Module) -> dict[str, torch.Tensor] | None:
    """A batch of one sample, if the model's configuration says what that is."""
    config: Any = getattr(model, "config", None)
    name: str | None = getattr(model, "main_input_name", None)
    if config is None or name is None:
        return None
    first = next(model.parameters(), torch.zeros(()))
    dtype, device = first.dtype, first.device
    tokens = {"input_ids": torch.ones(1, _N_TOKENS, dtype=torch.int64, device=device)}
    if name == "input_ids":
        made = _with_image(config, tokens, dtype)
    elif name == "pixel_values":
        made = {name: _image(config, dtype, device)}
    elif name == "input_features" and hasattr(config, "num_mel_bins"):
        length = 2 * config.max_source_positions if hasattr(config, "max_source_positions") else 2 * _SIZE
        made = {name: torch.zeros(1, config.num_mel_bins, length, dtype=dtype, device=device)}
    elif name == "input_values" and hasattr(config, "num_mel_bins"):
        made = {name: torch.zeros(1, getattr(config, "max_length", 2 * _SIZE), config.num_mel_bins, dtype=dtype, device=device)}
    elif name == "input_values":
        made = {name: torch.linspace(-1, 1, 2000, dtype=dtype, device=device)[None]}
    else:
        return None
    if getattr(config, "is_encoder_decoder", False):
        made["decoder_input_ids"] = tokens["input_ids"]
    return made


def _image(config: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A grey image of the size that the configuration, or the one of its encoder, has."""
    own = [config, *(getattr(config, name, None) for name in ("vision_config", "encoder", "backbone_config"))]
    size = next((each.image_size for each in own if hasattr(each, "image_size")), _SIZE)
    n_channels = next((each.num_channels for each in own if hasattr(each, "num_channels")), 3)
    n_frames = [config.num_frames] if hasattr(config, "num_frames") else []
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return torch.zeros(1, *n_frames, n_channels, height, width, dtype=dtype, device=device)


def _with_image(config: Any, tokens: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Tokens, and the image that models for both take, whose places among the tokens are counted by its patches."""
    vision, token = getattr(config, "vision_config", None), getattr(config, "image_token_id", None)
    if vision is None or token is None or not hasattr(vision, "image_size") or not hasattr(vision, "patch_size"):
        return tokens
    ids = tokens["input_ids"]
    image = _image(config, dtype, ids.device)
    n = getattr(config, "image_seq_length", None) or (vision.image_size // vision.patch_size) ** 2
    return {"input_ids": torch.cat([torch.full((1, n), token, device=ids.device), ids], dim=1), "pixel_values": image}
