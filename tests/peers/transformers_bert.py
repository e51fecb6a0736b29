"""Small random BERTs of the `transformers` package, and what it makes of any folder.

    transformers_bert.py make DIR          writes one folder of each kind into DIR, with what it expects
    transformers_bert.py logits DIR ID...  prints what the model in DIR expects, as JSON: the logits of every
                                           token, and the logarithm of the odds that the second half of the
                                           ids does not follow the first
    transformers_bert.py version           prints the versions of transformers and torch
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import BertConfig, BertForPreTraining

IDS = [3, 14, 15, 9, 2, 6, 5, 3, 5, 8, 19, 0]


def load(folder):
    model = BertForPreTraining.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def logits(model, ids):
    segments = [int(i >= len(ids) // 2) for i in range(len(ids))]
    with torch.no_grad():
        out = model(torch.tensor([ids]), token_type_ids=torch.tensor([segments]))
    follows, strange = out.seq_relationship_logits[0].tolist()
    return out.prediction_logits[0].flatten().tolist() + [strange - follows]


def random(seed, tied):
    torch.manual_seed(seed)
    config = BertConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, vocab_size=20, pad_token_id=None, tie_word_embeddings=tied,
    )
    model = BertForPreTraining(config)
    # Every tensor far from its initial value, so that none can be left out or mistaken for another.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "LayerNorm.weight" in name else 0.0, 0.5)
    return model


def expect(model, folder):
    (folder / "generation_config.json").unlink(missing_ok=True)
    expected = {"ids": IDS, "logits": logits(model, IDS)}
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


def save(model, folder, **options):
    model.save_pretrained(folder, **options)
    expect(load(folder), folder)


def save_old(model, folder):
    """As early files are: Google's names of a norm's weights, no prefix, constants and copies beside."""
    model.save_pretrained(folder)
    state = {}
    for name, tensor in model.state_dict().items():
        name = name.removeprefix("bert.")
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        state[name] = tensor.clone()
    state["embeddings.position_ids"] = torch.arange(16).unsqueeze(0)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    expect(model.eval(), folder)


def make(folder):
    save(random(1, True), folder / "tied")
    save(random(2, True).to(torch.float16), folder / "f16")
    save(random(3, False).to(torch.bfloat16), folder / "bf16-sharded", max_shard_size="4KB")
    save_old(random(4, True), folder / "old-names")


match sys.argv[1:]:
    case ["make", folder]:
        make(Path(folder))
    case ["logits", folder, *ids]:
        print(json.dumps(logits(load(folder), [int(i) for i in ids])))
    case ["version"]:
        print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    case _:
        sys.exit(__doc__)
