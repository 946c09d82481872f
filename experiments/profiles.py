"""What a profile means: for each of its data sets the budget, the network and the seeds of a run.

A notebook changes them in the `profiles` of its `Study`.
"""

from typing import Any

from experiments.analysis.claims import PLANNED_OF
from experiments.checks import refuse_unknown
from experiments.datasets.manifests import is_own

# What all recipes have, but where they say otherwise
_COMMON: dict[str, Any] = {"image_size": 0, "test_resize": 0, "samples_per_class": 4, "epochs": 0}
_COMMON |= {"warmup_epochs": 0.0, "batch_size": 100, "threads": 1}
# What each profile means for each dataset; the first dataset of a profile is its default. `fixed` are fields of the
# RunSpec that are no notebook parameters, `searched` the budget of the searches where it is not that of the runs.
_GLYPHS = {
    "backbone": "conv4",
    "weights": "symbols",  # training begins at a pretrained network, as in the papers
    "embedding_size": 64,
    "train_from": "head",  # a run takes half a second
}
_CUB_SUBSET = {
    "backbone": "squeezenet1_1",
    "weights": "imagenet",
    "embedding_size": 128,
    "train_from": "fire6",  # what lies below is computed once: a third of the time, and as good
    "image_size": 128,
    "test_resize": 144,
    "steps": 150,  # a third more gives none but MultiSimilarity 0.6 points of validation MAP@R or R@1
    "searched": {"steps": 100, "epochs": 0},  # where MAP@R, by which trials are judged, has come to its end
    # a new head on a pretrained trunk has three epochs to learn in: it learns faster, and crops are mild
    "fixed": {"head_lr": 1e-3, "crop_scale": (0.5, 1.0)},
}
_CUB = {"backbone": "resnet50.tv_in1k", "weights": "imagenet", "embedding_size": 512, "train_from": ""}
_CUB |= {"image_size": 224, "test_resize": 256, "samples_per_class": 0, "warmup_epochs": 1.0}
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "quick": {"glyphs": _COMMON | _GLYPHS | {"steps": 50, "lr": 1e-3, "seeds": 1}},
    # runs side by side use all cores, and one with two threads takes more of both
    "small": {"cub-subset": _COMMON | _CUB_SUBSET | {"lr": 1e-4, "seeds": 10}},
    "paper": {"cub": _COMMON | _CUB | {"steps": 0, "epochs": 200, "lr": 1e-4, "seeds": 5, "threads": 0}},
}
RECIPES["small"]["cars-subset"] = RECIPES["small"]["cub-subset"] | {"image_size": 112, "test_resize": 112}
RECIPES["small"] |= {name: RECIPES["small"][f"{name}-subset"] for name in ("cub", "cars")}
_FROM_SCRATCH = RECIPES["quick"]["glyphs"] | {"weights": "none", "train_from": "", "steps": 300, "seeds": 2}
RECIPES["small"]["omniglot"] = _FROM_SCRATCH | {"embedding_size": 128, "steps": 1500, "seeds": 10}
_FEW_CLASSES = {"steps": 500, "seeds": 5, "samples_per_class": 20}
RECIPES["small"]["mnist"] = RECIPES["small"]["omniglot"] | _FEW_CLASSES
RECIPES["paper"]["cars"] = RECIPES["paper"]["cub"]
RECIPES["paper"]["sop"] = RECIPES["paper"]["cub"] | {"warmup_epochs": 0.0}
RECIPES["paper"]["inshop"] = RECIPES["paper"]["sop"]
# What is otherwise of a network: MobileNetV2 is trained whole, to its plateau: a quarter of an hour of a core, seconds
# of a GPU. Its batch-norm statistics are fixed, scores are looked at every second epoch.
_WHOLE = {
    "train_from": "",
    "steps": 0,
    "epochs": 16,
    "searched": {"steps": 0, "epochs": 16},
    # of the network; with the number of epochs the best on one third of the training classes; options as published
    "rates": (1e-4, 3e-5, 3e-4, 1e-5),
    "seeds": PLANNED_OF["mobilenet_v2"],
    "fixed": {"head_lr": 1e-3, "crop_scale": (0.4, 1.0)},
    "precision": "bfloat16",
    "eval_every_epochs": 2.0,
}
BY_NETWORK: dict[tuple, dict[str, Any]] = {("small", name, "mobilenet_v2"): _WHOLE for name in ("cub-subset", "cub")}
RECIPES["paper"] |= {f"{name}-subset": recipe for name, recipe in RECIPES["paper"].items()}  # partial copies
# A reader's own images have the recipe of a set that is like them; at quick they are made as small as glyphs.
OWN_RECIPES: dict[str, dict[str, Any]] = {
    "quick": _FROM_SCRATCH | {"image_size": 32, "test_resize": 32},
    "small": RECIPES["small"]["cub-subset"],
    "paper": RECIPES["paper"]["cub"],
}


def recipe_of(profile: str, dataset: str, backbone: str | None = None) -> dict[str, Any]:
    """What a profile means for a data set, and for a network if one is named; ValueError lists what there is."""
    refuse_unknown("unknown profile", [profile], RECIPES)
    if is_own(dataset):
        return OWN_RECIPES[profile]
    if dataset not in RECIPES[profile]:
        elsewhere = " or ".join(repr(name) for name, recipes in RECIPES.items() if dataset in recipes)
        hint = f"profile = {elsewhere} has it; " if elsewhere else ""
        raise ValueError(
            f"unknown dataset {dataset!r} for profile {profile!r}; {hint}{profile} has {', '.join(RECIPES[profile])}, "
            "and your own images as folder:PATH or manifest:FILE.csv"
        )
    return RECIPES[profile][dataset] | BY_NETWORK.get((profile, dataset, backbone), {})


def benchmark_of(dataset: str) -> str:
    """The benchmark whose published settings a data set takes: a partial copy the whole's, a reader's images CUB's."""
    return "cub" if is_own(dataset) else dataset.removesuffix("-subset")
