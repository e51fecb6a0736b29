"""Small random Llamas, Qwen2s and Mistrals of the `transformers` package, and its logits of any folder.

    transformers_llama.py make DIR          writes one folder of each kind into DIR, with its logits
    transformers_llama.py draw DIR SEED N   writes N folders of drawn configurations, with logits and a short training
    transformers_llama.py logits DIR ID...  prints the logits of the model in DIR as JSON
    transformers_llama.py version           prints the versions of transformers and torch
"""

import json
import sys
from pathlib import Path
from random import Random

import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from training import losses

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


def random(seed, kind, deviation=0.5, **keys):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(kind(**{**SIZES, **keys}))
    # Every tensor far from its initial value, so that none can be left out or mistaken for another.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, deviation)
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
    save(random(10, LlamaConfig, head_dim=6), folder / "head-dim")


def drawn(draw):
    """A kind of model, and its configuration."""
    kind = draw.choice([LlamaConfig, Qwen2Config, MistralConfig])
    heads = draw.choice([1, 2, 4, 6])
    scaling = draw.choice([
        {},
        scaled("linear", factor=draw.choice([2.0, 3.5])),
        scaled("dynamic", factor=2.0),
        scaled("yarn", factor=4.0, original_max_position_embeddings=6),
        scaled("llama3", factor=8.0, original_max_position_embeddings=12, low_freq_factor=1.0, high_freq_factor=4.0),
    ])
    keys = dict(
        num_hidden_layers=draw.choice([1, 2, 3]), hidden_size=heads * draw.choice([4, 8]), num_attention_heads=heads,
        num_key_value_heads=draw.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        intermediate_size=draw.randint(5, 40), vocab_size=draw.randint(20, 90), rms_norm_eps=draw.choice([1e-6, 1e-5]),
        tie_word_embeddings=draw.random() < 0.5, hidden_act=draw.choice(["silu", "gelu", "gelu_pytorch_tanh"]),
        **(scaling or {"rope_theta": draw.choice([50.0, 1e4, 1e6])}),
    )
    if draw.random() < 0.4:
        keys["head_dim"] = draw.choice([4, 6, 10])
    if kind is MistralConfig:
        keys["sliding_window"] = draw.choice([None, 3, 16])
    if kind is Qwen2Config and draw.random() < 0.5:
        keys |= dict(use_sliding_window=True, sliding_window=5, max_window_layers=0)
    return kind, keys


def groups(model):
    """Its parameters with the decay that ours have."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return [dict(params=matrices, weight_decay=0.1), dict(params=others, weight_decay=0.0)]


def draw(folder, seed, count):
    choices = Random(seed)
    for number in range(count):
        kind, keys = drawn(choices)
        # With larger weights torch's own losses in f32 and f64 differ by more than the tolerance.
        model, one = random(choices.getrandbits(32), kind, 0.2, **keys), folder / f"{number:02}-{kind.model_type}"
        save(model, one)
        ids = torch.randint(keys["vocab_size"], (8 * SIZES["max_position_embeddings"] + 1,))
        (one / "ids.bin").write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))
        expected = json.loads((one / "expected.json").read_text())
        loaded = load(one).train()
        trained = losses(loaded, groups(loaded), ids, loaded.config.max_position_embeddings, 1e-3)
        expected["losses"] = list(trained)
        (one / "expected.json").write_text(json.dumps(expected) + "\n")


match sys.argv[1:]:
    case ["make", folder]:
        make(Path(folder))
    case ["draw", folder, seed, count]:
        draw(Path(folder), int(seed), int(count))
    case ["logits", folder, *ids]:
        print(json.dumps(logits(load(folder), [int(i) for i in ids])))
    case ["version"]:
        print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    case _:
        sys.exit(__doc__)
