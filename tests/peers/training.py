"""A short training of a causal model, with which Chimera's is compared."""

import torch


def losses(model, groups, ids, length, rate, steps=20):
    """Losses of AdamW steps over groups of parameters that see all windows of `length` ids."""
    inputs, targets = ids[:-1].view(-1, length), ids[1:]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()
