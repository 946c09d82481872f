"""A toy: when patience is spent, the best weights come back and the proxies are drawn anew, a given number of times."""

import torch

from dmlrepro.training.schemes import supervised


class Scheme(supervised.Scheme):
    def __init__(self, spec, task, network, *, problems: int = 2):
        super().__init__(spec, task, network)
        self.problems, self.solved = problems, 0

    def next_problem(self, best):
        self.solved += 1
        if self.solved == self.problems:
            return False
        for name, module in self.modules().items():
            module.load_state_dict(best["modules"][name])
        generator = torch.Generator().manual_seed(self.solved)
        with torch.no_grad():
            self.loss.proxies.copy_(torch.randn(self.loss.proxies.shape, generator=generator))
        return True

    def state(self):
        return super().state() | {"solved": self.solved}

    def load_state(self, state):
        super().load_state(state)
        self.solved = state["solved"]
