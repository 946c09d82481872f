"""A loss of ten lines, for notebook 03: an embedding shall lie nearer to its class's proxy than to the nearest proxy of
another class, by a margin of the cosine."""

import torch
import torch.nn.functional as F
from torch import nn


class MyLoss(nn.Module):
    def __init__(self, num_classes, embedding_size, scale=16.0, margin=0.1):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.scale, self.margin = scale, margin

    def forward(self, embeddings, labels):
        cosines = F.normalize(embeddings) @ F.normalize(self.proxies).T
        own = cosines.gather(1, labels[:, None])
        nearest = cosines.scatter(1, labels[:, None], -2.0).amax(1, keepdim=True)
        return F.softplus(self.scale * (nearest - own + self.margin)).mean()
