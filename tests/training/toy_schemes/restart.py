"""A toy of repeated problems: when one is spent, the proxies are drawn anew and the network is held near its best."""

import torch

from experiments.training.schemes import supervised


class Scheme(supervised.Scheme):
    problem_patience = 2

    def __init__(self, spec, task, network, *, problems: int = 2, projection: float = 0.1):
        super().__init__(spec, task, network)
        self.problems, self.projection = problems, projection
        self.solved, self.anchors = 0, {}  # the weights of the finished problem, none in the first

    def objective(self, embed, images, labels):
        terms = super().objective(embed, images, labels)
        if self.anchors:
            away = [p - self.anchors[name] for name, p in self.network.named_parameters()]
            terms["projection"] = self.projection * sum(difference.square().sum() for difference in away)
        return terms

    def next_problem(self, best):
        self.solved += 1
        if self.solved == self.problems:
            return False
        self.anchors = best["modules"]["network"]
        generator = torch.Generator().manual_seed(self.solved)
        with torch.no_grad():
            self.loss.proxies.copy_(torch.randn(self.loss.proxies.shape, generator=generator))
        return True

    def state(self):
        return super().state() | {"solved": self.solved, "anchors": self.anchors}

    def load_state(self, state):
        super().load_state(state)
        self.solved, self.anchors = state["solved"], state["anchors"]
