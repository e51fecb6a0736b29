"""The small stages and batches of which tests train some."""

import torch
from torch import nn

WIDTH = 4
MSE = nn.functional.mse_loss


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def batch(n=8, dtype=torch.float64):
    torch.manual_seed(7)
    return torch.randn(n, WIDTH, dtype=dtype), torch.randn(n, WIDTH, dtype=dtype)


def linear(stage, dtype=torch.float64):
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, dtype=dtype), nn.Tanh())
