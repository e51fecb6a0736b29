"""Small random models with adapters of the `peft` package.

    peft_adapters.py draw DIR SEED N        writes N folders into DIR, each with a model, an adapter, ids, the losses of a
                                            short training of the adapter, and the logits after it
    peft_adapters.py logits MODEL ADAPTER ID...  prints the logits of a model with an adapter as JSON
    peft_adapters.py version                prints the versions of peft, transformers and torch
"""

import json
import sys
from pathlib import Path
from random import Random

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config

from training import losses

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 19, 0]
SEQUENCE = 16
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(folder):
    # The plain attention: others round differently.
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0].flatten().tolist()


def drawn(draw):
    """A configuration, and the layers that adapters may have."""
    kind = draw.choice([LlamaConfig, Qwen2Config, MistralConfig, GPT2Config])
    heads, layers, vocab = draw.choice([1, 2, 4]), draw.choice([2, 4, 5]), draw.randint(20, 90)
    if kind is GPT2Config:
        rates = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        sizes = dict(n_embd=8 * heads, n_layer=layers, n_head=heads, n_positions=SEQUENCE, vocab_size=vocab)
        return GPT2Config(**sizes, **rates, bos_token_id=0, eos_token_id=0), ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"]
    config = kind(
        num_hidden_layers=layers, hidden_size=8 * heads, num_attention_heads=heads,
        num_key_value_heads=draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
        intermediate_size=draw.randint(5, 40), vocab_size=vocab, max_position_embeddings=SEQUENCE,
        tie_word_embeddings=draw.random() < 0.5, bos_token_id=0, eos_token_id=0,
    )
    return config, LAYERS


def draw(folder, seed, count):
    choices = Random(seed)
    for number in range(count):
        config, layers = drawn(choices)
        one = folder / f"{number:02}-{config.model_type}"
        torch.manual_seed(choices.getrandbits(32))
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.normal_(1.0 if "norm" in name or "ln_" in name else 0.0, 0.2)
        model.save_pretrained(one / "model")
        layers = choices.sample(layers, choices.randint(1, len(layers)))
        options = dict(target_modules=layers, fan_in_fan_out=config.model_type == "gpt2", task_type="CAUSAL_LM")
        options["use_dora"] = number % 2 == 1
        lora = LoraConfig(r=choices.choice([1, 3, 8]), lora_alpha=choices.choice([1, 8, 12]), **options)
        adapted = get_peft_model(load(one / "model"), lora)
        adapted.save_pretrained(one / "adapter")
        ids = torch.randint(config.vocab_size, (8 * SEQUENCE + 1,))
        (one / "ids.bin").write_bytes(b"".join(int(i).to_bytes(2, "little") for i in ids))
        parameters = [p for p in adapted.parameters() if p.requires_grad]
        # Magnitudes do not decay here.
        groups = [dict(params=[p for p in parameters if p.dim() > 1], weight_decay=0.1)]
        groups.append(dict(params=[p for p in parameters if p.dim() == 1], weight_decay=0.0))
        trained = losses(adapted.train(), groups, ids, SEQUENCE, 1e-2)
        expected = {"ids": IDS, "losses": list(trained)}
        expected["logits"] = logits(adapted, IDS)
        (one / "expected.json").write_text(json.dumps(expected) + "\n")
        adapted.save_pretrained(one / "trained")


match sys.argv[1:]:
    case ["draw", folder, seed, count]:
        draw(Path(folder), int(seed), int(count))
    case ["logits", model, adapter, *ids]:
        print(json.dumps(logits(PeftModel.from_pretrained(load(model), adapter), [int(i) for i in ids])))
    case ["version"]:
        print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    case _:
        sys.exit(__doc__)
