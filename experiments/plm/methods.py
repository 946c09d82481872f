"""The methods of "Piecewise-Linear Manifolds for Deep Metric Learning", all without labels: PLM and its baselines.

The paper reports its baselines from their papers; ours are written from the published descriptions and share PLM's
network, images, views and budget. As in the paper, training begins at a pretrained network, at quick one that learned
symbols of other kinds. A method without labels is tuned on validation classes as any other: their labels choose, none
trains. Only notebook 50 has such searches. DELTA below the profile paper was chosen on validation classes too
(results/README.md): the published 2 asks nearly all pairs to lie farther apart than points of a sphere can on average,
so that training goes on until nothing of the features is left. Notebooks 50 and 55 have it beside DELTA.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from experiments import studies
from experiments.analysis.tables import START
from experiments.figures.style import Names
from experiments.methods import BASELINES, LOSS_LR, NOT_REPORTED, PROXIES, Method, Setting, expand_seeds, pick, spec_of
from experiments.params import Count, Number, Positive
from experiments.plm.claims import TESTS
from experiments.study import Study
from experiments.training.search import Range
from experiments.training.spec import LEAST_CROPS, RunSpec

# Images of a group in a batch, as in STML's code, in two views each; PLM gives neither N nor k of its sampler. A head
# on features has one view of an image, so that a group of as many points has twice as many images.
NEIGHBOURS = 5
_SEC = "Sec. 4.1"
PUBLISHED: Mapping[str, Setting] = {
    "backbone": Setting("googlenet", f"{_SEC}: 'the GoogLeNet backbone'"),
    "embedding_size": Setting(512, f"{_SEC}: 'embedding sizes of 128 and 512'"),
    "epochs": Setting(200, f"{_SEC}: 'for 200 epochs on all three datasets'"),
    "optimizer": Setting("adam", f"{_SEC}: 'We use Adam'"),
    "lr": Setting(5e-4, f"{_SEC}: 'the learning rate chosen as 5e-4'"),
    "weight_decay": NOT_REPORTED,
    "batch_size": Setting(100, f"{_SEC}: 'a mini-batch size of 100 samples'"),
    "views": Setting(2, f"{_SEC}: 'two random augmentations of an image'"),
    "neighbours": Setting(NEIGHBOURS, "STML's code; Sec. 3.1.1 gives neither N nor k"),
    "image_size": Setting(227, f"{_SEC}: '227 x 227 sized center crops'"),
    "test_resize": Setting(256, f"{_SEC}: 'resized to 256 x 256'"),
    "algorithm_options.momentum": Setting(0.999, f"{_SEC}: 'fixed as 0.999'"),
    "loss_lr.*": Setting(0.05, f"{_SEC}: 'the learning rate of our proxies by 100 times'"),
    "loss.num_proxies": Setting(100, f"{_SEC}: 'N_rho = 100'"),
    "loss.n_alpha": Setting(4.0, f"{_SEC}: 'N_alpha = 4'"),
    "loss.n_beta": Setting(0.5, f"{_SEC}: 'N_beta = 0.5'"),
    "loss.delta": Setting(2.0, f"{_SEC}: 'delta is set as 2'"),
    "loss.dim": Setting(3, f"{_SEC}: 'fixing m = 3'"),
    "loss.quality": Setting(0.9, f"{_SEC}: 'the reconstruction quality threshold T is set as 90%'"),
    "loss.k": Setting(2 * NEIGHBOURS - 1, "our reading: both views of the neighbours in a group; the paper says k"),
}
# Sec. 4.4 varies N_rho in [0, 500], m in [2, 7], N_alpha in [1, 6], N_beta in [0, 1.5] and delta in [0.2, 2].
TEMPERATURE = {"temperature": Range(0.01, 1, log=True)}
RANGES = {"n_alpha": Range(1, 6), "n_beta": Range(0, 1.5), "delta": Range(0.2, 2)} | LOSS_LR
DELTA = 1.0  # at quick and small, where the published delta destroys what a pretrained network knows
_LOSS = {name.removeprefix("loss."): setting.value for name, setting in PUBLISHED.items() if name.startswith("loss.")}
MOMENTUM = {"algorithm": "momentum_encoder", "neighbours": NEIGHBOURS}
_STML = "Kim et al., CVPR 2022"
_METHODS = (
    Method(
        "PLM",
        "piecewise_linear.PiecewiseLinearManifoldLoss",
        options=_LOSS,
        lr_multipliers={"*": PROXIES},
        from_parameters={"delta": "delta"},
        fields=MOMENTUM,
        search_space=RANGES,
        color="#B5179E",
    ),
    Method(
        "STML-style",
        "unlabelled.ContextualSimilarityLoss",
        fields=MOMENTUM,
        search_space={"sigma": Range(1, 9), "delta": Range(0.5, 1.5)},
        published={"k": NOT_REPORTED, "sigma": Setting(3.0, _STML), "delta": Setting(1.0, _STML)},
        color="#4361EE",
    ),
    Method(
        "NT-Xent",
        "unlabelled.nt_xent",
        fields={"algorithm": "pseudo_labels", "algorithm_options": {"labels": "instances"}},
        search_space=TEMPERATURE,
        published={"temperature": Setting(0.1, "Chen et al., ICML 2020")},
        color="#2A9D8F",
    ),
    *(
        Method(
            name,
            "baselines.normalized_softmax",
            lr_multipliers={"*": PROXIES},
            fields={"algorithm": "pseudo_labels", "algorithm_options": {"labels": labels}},
            search_space=TEMPERATURE | LOSS_LR,
            published={"clusters": NOT_REPORTED, "temperature": Setting(0.05, f"Zhai and Wu, BMVC 2019, not {source}")},
            color=color,
        )
        for name, labels, color, source in (
            ("K-Means", "kmeans", "#8D99AE", "Caron et al."),
            ("Hierarchical", "hierarchical", "#BC6C25", "Yan et al."),
            ("Random Walk", "random_walk", "#606C38", "Iscen et al."),
        )
    ),
)
OWN = {method.name: dataclasses.replace(method, offered=False) for method in _METHODS}
# The network before training: its features, and their random projection to the embedding
METHODS = {name: BASELINES[name] for name in ("untrained", START)} | OWN
NAMES = Names({name: method.color for name, method in METHODS.items()}, "plm")

published = functools.partial(studies.published, "plm")


class PlmOptions(BaseModel):
    views: Count  # random crops of each image in a batch
    momentum: Number  # gamma of the momentum encoder
    delta: Positive  # distance of points without similarity; the paper's is 2


# quick crops half a glyph at least; momentum encoders remember a tenth of the steps, the paper's of 200 epochs of CUB
PROFILES: dict[str, dict[str, Any]] = {
    "*": {"views": 2, "clusters": 100},
    "quick": {"fixed": {"crop_scale": (0.5, 1.0), "head_lr": 1e-3}, "image_size": 32, "test_resize": 32}
    | {"train_from": "", "batch_size": 25, "steps": 30, "lr": 1e-4, "momentum": 0.9, "delta": DELTA},
    "small": {"batch_size": 50, "steps": 200, "momentum": 0.99, "delta": DELTA},
    "paper": {name: PUBLISHED[name].value for name in ("backbone", "embedding_size", "epochs", "lr", "batch_size")}
    | {name: PUBLISHED[name].value for name in ("image_size", "test_resize")}
    | {"warmup_epochs": 0.0, "momentum": PUBLISHED["algorithm_options.momentum"].value}
    | {"delta": PUBLISHED["loss.delta"].value},
}
plm_study = functools.partial(
    Study,
    paper="plm",
    claims=TESTS,
    shared=PROFILES,
    published=lambda params, method, setting="": PUBLISHED if method == "PLM" else {},
)


def unlabelled_runs(names: Iterable[str], params: Any, **how: Any) -> list[RunSpec]:
    """All seeds of some methods; `how`, see `spec_of`, is of those that train; of `algorithm_options` what differs."""
    specs = []
    for method in pick(METHODS, names):
        fields: dict[str, Any] = {}
        if method.loss is not None:
            own = {"momentum": params.momentum}
            if method.fields["algorithm"] == "pseudo_labels":
                own = {**method.fields["algorithm_options"], "clusters": params.clusters}
            fields = {"views": params.views}
            if params.weights != "none" and params.train_from == "head":  # there is one view of an image
                fields = {"views": 1} | ({"neighbours": 2 * NEIGHBOURS} if "neighbours" in method.fields else {})
            elif params.weights != "none" and params.train_from:
                fields |= {"cached_views": LEAST_CROPS}
            fields |= how | {"algorithm_options": own | how.get("algorithm_options", {})}
        if method.name != START:  # which comes with "untrained"
            specs.append(spec_of(method, params, **fields))
    return expand_seeds(specs, params)
