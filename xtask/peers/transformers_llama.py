"""Small random Llamas, Qwen2s and Mistrals of the `transformers` package, and its logits of any folder.

    transformers_llama.py make DIR          writes one folder of each kind into DIR, with its logits
    transformers_llama.py logits DIR ID...  prints the logits of the model in DIR as JSON
    transformers_llama.py version           prints the versions of transformers and torch
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 19, 0]
SIZES = dict(
    num_hidden_layers=2, hidden_size=8, num_attention_heads=4, num_key_value_heads=2, intermediate_size=12,
    max_position_embeddings=16, vocab_size=20, bos_token_id=0, eos_token_id=0,
)


def load(folder):
    # The plain attention: others round differently, and some know no window.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].flatten().tolist()


def random(seed, kind, **keys):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(kind(**{**SIZES, **keys}))
    # Every tensor far from its initial value, so that none can be left out or mistaken for another.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.5)
    return model


def scaled(kind, **numbers):
    return dict(rope_scaling={"rope_type": kind, "rope_theta": 100.0, **numbers}, rope_theta=100.0)


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    values = logits(load(folder), IDS)
    expected = {"ids": IDS, "logits": values}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def make(folder):
    save(random(1, LlamaConfig, tie_word_embeddings=True), folder / "tied")
    save(random(2, LlamaConfig, num_key_value_heads=4).to(torch.float16), folder / "f16")
    sharded = random(3, LlamaConfig, hidden_act="gelu_pytorch_tanh").to(torch.bfloat16)
    save(sharded, folder / "bf16-sharded", max_shard_size="2KB")
    save(random(4, Qwen2Config, tie_word_embeddings=True, rope_theta=100.0), folder / "qwen2")
    window = dict(use_sliding_window=True, sliding_window=5, max_window_layers=0)
    save(random(5, Qwen2Config, **window), folder / "qwen2-window")
    save(random(6, MistralConfig, sliding_window=3), folder / "mistral")
    save(random(7, LlamaConfig, **scaled("linear", factor=2.0)), folder / "linear")
    yarn = scaled("yarn", factor=4.0, original_max_position_embeddings=6, beta_fast=2.0)
    save(random(8, LlamaConfig, **yarn), folder / "yarn")
    llama3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    llama3 = scaled("llama3", original_max_position_embeddings=12, **llama3)
    save(random(9, LlamaConfig, **llama3), folder / "llama3")


match sys.argv[1:]:
    case ["make", folder]:
        make(Path(folder))
    case ["logits", folder, *ids]:
        print(json.dumps(logits(load(folder), [int(i) for i in ids])))
    case ["version"]:
        print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    case _:
        sys.exit(__doc__)
