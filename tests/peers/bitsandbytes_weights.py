"""Weights in the formats of the `bitsandbytes` package.

    bitsandbytes_weights.py draw DIR            writes a random Llama into DIR
    bitsandbytes_weights.py compare DIR OURS FORMAT  compares the weights in OURS with those of DIR in a format, and
                                                fails unless they are equal
    bitsandbytes_weights.py version             prints the versions of bitsandbytes and torch
"""

import sys
from pathlib import Path

import bitsandbytes
import torch
from bitsandbytes import functional
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig


def draw(folder):
    torch.manual_seed(3)
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=200, num_attention_heads=5, num_key_value_heads=1, head_dim=40,
        intermediate_size=333, vocab_size=256, max_position_embeddings=16, bos_token_id=0, eos_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def through(weight, form):
    """The values that a weight has in a format."""
    if form == "bf16":
        return weight.to(torch.bfloat16).float()
    if form == "int8":
        codes, scales, _ = functional.int8_vectorwise_quant(weight)
        return functional.int8_vectorwise_dequant(codes, scales)
    packed, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4", compress_statistics=False)
    if form == "nf4-double":
        state.absmax = doubled(state.absmax)
    return functional.dequantize_4bit(packed, state)


def doubled(scales):
    """Scales in 8 bits, of which each is the nearest. The package's kernel for processors looks codes up on a grid,
    and takes a neighbour for one in a thousand; it sums the scales in f32."""
    table = functional.create_dynamic_map()
    mean = scales.double().mean().float()
    parts = []
    for block in (scales - mean).split(256):
        most = block.abs().max()
        codes = (block[:, None] / most - table).abs().argmin(dim=1)
        parts.append(table[codes] * most)
    return torch.cat(parts) + mean


def compare(folder, ours, form):
    ours, theirs = (load_file(Path(at) / "model.safetensors") for at in (ours, folder))
    n_equal = n_values = n_matrices = 0
    worst = 0.0
    for name, weight in theirs.items():
        is_matrix = "layers." in name and weight.dim() == 2
        expected = through(weight.float(), form) if is_matrix else weight.float()
        n_matrices += is_matrix
        n_equal += (ours[name] == expected).sum().item()
        n_values += expected.numel()
        worst = max(worst, (ours[name] - expected).abs().max().item() / expected.abs().max().item())
    print(f"{form}: {n_equal} of {n_values} values are equal, the others to {worst:.1e} of the largest")
    assert n_matrices == 14, n_matrices
    assert n_equal == n_values


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["draw", folder]:
            draw(Path(folder))
        case ["compare", folder, ours, form]:
            compare(folder, ours, form)
        case ["version"]:
            print("bitsandbytes", bitsandbytes.__version__, "torch", torch.__version__)
