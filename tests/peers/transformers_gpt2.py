"""Small random GPT-2s of the `transformers` package, and its logits of any folder.

    transformers_gpt2.py make DIR          writes one folder of each kind into DIR, with its logits
    transformers_gpt2.py logits DIR ID...  prints the logits of the model in DIR as JSON
    transformers_gpt2.py version           prints the versions of transformers and torch
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 19, 0]


def load(folder):
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].flatten().tolist()


def random(seed, tied):
    torch.manual_seed(seed)
    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, n_positions=16, vocab_size=20,
        bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied,
    )
    model = GPT2LMHeadModel(config)
    # Every tensor far from its initial value, so that none can be left out or mistaken for another.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "ln_" in name and "weight" in name else 0.0, 0.5)
    return model


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)
    values = logits(load(folder), IDS)
    expected = {"ids": IDS, "logits": values}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def make(folder):
    save(random(1, True), folder / "tied")
    save(random(2, True).to(torch.float16), folder / "f16")
    save(random(3, False).to(torch.bfloat16), folder / "bf16-sharded", max_shard_size="2KB")
    # As OpenAI's own files are.
    save(random(4, True).transformer, folder / "without-prefix")


match sys.argv[1:]:
    case ["make", folder]:
        make(Path(folder))
    case ["logits", folder, *ids]:
        print(json.dumps(logits(load(folder), [int(i) for i in ids])))
    case ["version"]:
        print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    case _:
        sys.exit(__doc__)
