"""The methods of "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning".

They are ProxyNCA++ with one of seven distances, and the joint loss of EL-nivMF with ProxyAnchor. As in the released
code, and not in the paper, proxies start at the class means of the untrained embeddings, embeddings are scaled up
before they are read as kappa mu, and the loss's parameters have learning rates of their own.
"""

import dataclasses
import functools
from typing import Any

from pydantic import BaseModel

from dmlrepro.losses.nivmf import DEFAULTS, RATES
from experiments import studies
from experiments.figures.style import Names
from experiments.methods import BASELINES, LOSS_LR, Method, Setting
from experiments.nivmf.claims import JOINT, TESTS
from experiments.params import Choice, Count, Number, Params, protocol_of
from experiments.profiles import benchmark_of
from experiments.study import Study
from experiments.training import protocols
from experiments.training.search import Range

# Method, its distance of losses.nivmf, initial (concentration, temperature) of small networks, colour. Initial values
# have the best R@1 on validation classes (fold 0 of 4, seed 7, 200 steps, 64 dimensions, from scratch) of 12 trials for
# every distance, the published grid kappa in {10, 50, 200} by t in {1, 1/32, 1/256}, and t = 32. The embedded weights
# start there too, those of photographs where the released code does (losses.nivmf.DEFAULTS).
_DISTANCES = (
    ("Cosine", "cosine", (10.0, 1.0), "#999933"),
    ("L2", "l2", (10.0, 32.0), "#332288"),
    ("nivMF", "nivmf", (50.0, 32.0), "#CC6677"),
    ("EL-vMF", "el_vmf", (200.0, 1.0), "#117733"),
    ("B-vMF", "bhattacharyya", (200.0, 1.0), "#44AA99"),
    ("KL-vMF", "kl", (50.0, 1.0), "#88CCEE"),
    ("EL-nivMF", "el_nivmf", (50.0, 1.0), "#882255"),
)
DISTANCES = {name: distance for name, distance, *_ in _DISTANCES}
TABLE_2 = "schedule=steps"  # so the tables call the runs with a step-wise learning-rate schedule

# kappa_z over the embedding's norm, which a fresh head leaves at 0.5 (conv4, 64 dimensions), 50 (SqueezeNet, 128) or 10
# (MobileNetV2, 128): initial concentrations are a quarter to a half of the dimension. ResNet-50's is the least of the
# released code, BN-Inception's our choice. At the profile paper the released value of data set and dimension is taken.
EMBEDDING_SCALE = {"conv4": 30.0, "squeezenet1_1": 1.0, "mobilenet_v2": 5.0}
EMBEDDING_SCALE |= {"resnet50.tv_in1k": 10.0, "bn_inception": 10.0}

SAMPLES = 5  # EL-nivMF draws so many per image (N) in the released runs
OMEGA = 0.3  # weight of ProxyAnchor beside EL-nivMF, the best of 0.1, 0.3, 1, 3, 10 chosen as the initial values were

# The ranges enclose the grids of the released ablation (initial kappa 10 to 200, t 1/256 to 1), what the other released
# runs take (6 to 22 and 0.003), and the initial values above.
RANGES = {
    "concentration": Range(5, 500, log=True),
    "temperature": Range(1e-3, 100, log=True),
    "embedding_scale": Range(0.3, 30, log=True),
} | LOSS_LR

LR = 1e-5  # of the network; the released code states all other rates as multiples of it
_SHARED = {
    "lr": Setting(LR, "Sec. 4: 'a learning rate of 10^-5'"),
    "optimizer": Setting("adam", "Sec. 4: 'using the Adam optimizer'"),
    "weight_decay": Setting(4e-4, "the released code; Sec. 4 prints 4e-3"),
    "freeze_batchnorm": Setting(True, "the released code: resnet50_frozen"),
    "samples_per_class": Setting(2, "the released code, which draws them with replacement, we without"),
}
# Table 1 is under the pipeline of Roth et al., without a schedule.
_TABLE_1 = _SHARED | {
    "epochs": Setting(150, "Roth et al., ICML 2020, whose pipeline Table 1 has"),
    "batch_size": Setting(112, "Roth et al., ICML 2020, whose pipeline Table 1 has"),
}


def _rates(proxies: float, concentrations: float, concentration: float, temperature: float, source: str) -> dict:
    """Learning rates of a probabilistic loss from multiples of the network's, of logarithms (data/deviations.csv): over
    an initial temperature of 0.003 a step would multiply or divide it by two, by which the release crosses zero."""
    times = "x the network's"
    of_kappa = f"{source}: {concentrations:g} {times}, over the initial {concentration:g}"
    return {
        "loss_lr.proxies": Setting(proxies * LR, f"{source}: {proxies:g} {times}"),
        "loss_lr.log_concentrations": Setting(concentrations * LR / concentration, of_kappa),
        "loss_lr.log_temperature": Setting(temperature * LR, f"{source}: {temperature:g} {times}, for log t"),
    }


def _of_loss(source: str, **values: float) -> dict[str, Setting]:
    return {f"loss.{name}": Setting(value, source) for name, value in values.items()}


# The commands of the released example_runs.sh, of ProxyAnchor + EL-nivMF with a step-wise schedule (Table 2)
_COMMANDS: dict[tuple[str, int], tuple] = {
    # data set, dimensions: epochs, drops, factor, proxies x, kappa x, kappa, embedding scale, omega
    ("cub", 128): (250, (25, 50), 0.3, 5000, 20000, 6.0, 30.0, 3.0),
    ("cub", 512): (250, (31,), 0.1, 5000, 20000, 18.0, 50.0, 5.0),
    ("cars", 128): (300, (60, 80), 0.1, 7500, 7500, 9.0, 12.0, 0.3),
    ("cars", 512): (300, (105, 170), 0.2, 5000, 20000, 22.0, 10.0, 0.1),
}


def ablation_of(dataset: str, method: str = "EL-nivMF") -> dict[str, Setting]:
    """One distance in the comparison of Sec. 4.3, as in the released ablation on CUB."""
    concentration, temperature = DEFAULTS[DISTANCES[method]]
    source, on_cars = "the released ablation", benchmark_of(dataset) == "cars"
    grid = f"Supp. I gives the grid; the choice is that of {source} on CUB" + ", none is known for Cars" * on_cars
    epochs = Setting(150, "Supp. I: '150 epochs on CARS'") if on_cars else Setting(50, "Supp. I: '50 on CUB'")
    record = (
        _SHARED
        | {"embedding_size": Setting(512, "Supp. I: 'we used the dimensionality M=512'")}
        | {"batch_size": Setting(106, "Supp. I: 'a batchsize of 106'"), "epochs": epochs}
        | _of_loss(grid, concentration=concentration, temperature=temperature)
        | _of_loss(source, embedding_scale=150.0)
        | _rates(5000, 50000, concentration, 500, source)
    )
    if method == "EL-nivMF":
        record["loss.num_samples"] = Setting(10, f"{source}; Supp. H: 'N~10'")
    if "nivMF" not in method:
        del record["loss_lr.log_concentrations"]
    return record


_CODE = "the released code's default"
# What the paper's own comparisons give the baselines. ProxyNCA's scale s of both vectors is the temperature 1 / s^2.
COMPARED: dict[str, dict[str, Setting]] = {
    "ProxyNCA++": _of_loss(f"{_CODE}: scale 3", temperature=1 / 3**2)
    | {"loss_lr.*": Setting(50 * LR, f"{_CODE}: 50 x the network's")},
    "ProxyAnchor": _of_loss(_CODE, alpha=32.0, margin=0.1)
    | {"loss_lr.*": Setting(2000 * LR, f"{_CODE}: 2000 x the network's")},
    "MultiSimilarity": _of_loss(_CODE, alpha=2.0, beta=40.0, base=0.5, epsilon=0.1),
    "Margin": _of_loss(_CODE, beta=1.2, margin=0.2) | {"loss_lr.*": Setting(50 * LR, f"{_CODE}: 5e-4")},
}


def released_for(dataset: str, backbone: str, dim: int) -> dict[str, Setting]:
    """The released run of ProxyAnchor + EL-nivMF; where none was released (SOP, BN-Inception), the nearest: for CUB
    where the set is not Cars, with ResNet-50, at 128 dimensions up to 128 and at 512 above."""
    benchmark = benchmark_of(dataset)
    known = benchmark if benchmark in ("cub", "cars") else "cub", 128 if dim <= 128 else 512
    epochs, drops, drop, proxies, concentrations, concentration, scale, omega = _COMMANDS[known]
    source = "the released example_runs.sh, {} at {} dimensions".format(*known)
    values = {"embedding_size": known[1], "epochs": epochs, "lr_drop_epochs": drops, "lr_drop": drop}
    loss = {"concentration": concentration, "embedding_scale": scale, "temperature": 0.003, "num_samples": 5}
    record = (
        _SHARED
        | {"batch_size": Setting(64, "the released code, where a command says nothing else")}
        | {name: Setting(value, source) for name, value in values.items()}
        | _of_loss(source, **loss, omega=omega)
        | _rates(proxies, concentrations, concentration, 200, source)
    )
    if known == (benchmark, dim) and backbone.startswith("resnet50"):
        return record
    remark = f"none was released for {benchmark}, {backbone}, {dim} dimensions"
    return {name: Setting(setting.value, f"{setting.source}; {remark}") for name, setting in record.items()}


OWN: dict[str, Method] = {}
for _name, _form, _initial, _color in _DISTANCES:
    _sampled = _form == "el_nivmf"
    OWN[_name] = Method(
        _name,
        "nivmf.ProbabilisticProxyLoss",
        options={"distance": _form} | ({"num_samples": SAMPLES} if _sampled else {}),
        param_lrs={key: rate for key, rate in RATES.items() if key != "log_concentrations" or "nivMF" in _name},
        from_parameters={"embedding_scale": "embedding_scale"} | ({"num_samples": "samples"} if _sampled else {}),
        from_scratch=dict(zip(("concentration", "temperature"), _initial)),
        by_backbone={"embedding_scale": EMBEDDING_SCALE},
        fields={"proxies_from_class_means": True},
        search_space=RANGES,
        color=_color,
    )
# Eq. 7: EL-nivMF with ProxyAnchor on the same proxies
OWN[JOINT] = dataclasses.replace(
    OWN["EL-nivMF"],
    name=JOINT,
    loss="nivmf.proxy_anchor_with_nivmf",
    options=OWN["EL-nivMF"].options | {"omega": OMEGA},
    param_lrs={f"probabilistic.{key}": rate for key, rate in OWN["EL-nivMF"].param_lrs.items()},
    from_parameters=OWN["EL-nivMF"].from_parameters | {"omega": "omega"},
    # Sec. 4.2: "Here, we only optimize the scaling omega"; up to 100 as in Fig. 4, the released runs take 0.1 to 5
    search_space={"omega": Range(0.01, 100, log=True)},
    color="#AA4499",
)
METHODS = BASELINES | OWN
NAMES = Names({name: method.color for name, method in METHODS.items()}, "nivmf")

published = functools.partial(studies.published, "nivmf")


class NivmfOptions(BaseModel):
    protocol: str
    samples: Count  # N, Monte-Carlo samples of EL-nivMF
    embedding_scale: Number  # kappa_z over the embedding's norm; 0: EMBEDDING_SCALE of the backbone


OPTION_OF = {"samples": "num_samples", "omega": "omega", "embedding_scale": "embedding_scale"}  # by parameter
SCHEDULED = ("epochs", "batch_size", "lr_drop_epochs", "lr_drop")  # what Table 2 has otherwise than Table 1


def decided(choice: Choice, ablation: bool = False) -> dict[str, Any]:
    """At the profile paper the settings of the released runs; of notebooks on the distances those of the ablation."""
    schedule: dict[str, Any] = {"lr_drop_epochs": (), "lr_drop": 0.5}
    if choice.profile != "paper":
        return {"samples": SAMPLES, "omega": OMEGA, "embedding_scale": 0.0} | schedule
    protocol = choice.protocol or "roth"
    settings = protocols.find(protocol).settings
    backbone = choice.backbone or settings.get("backbone", "resnet50.tv_in1k")
    record = released_for(choice.dataset, backbone, choice.embedding_size or settings.get("embedding_size", 512))
    record |= ablation_of(choice.dataset) if ablation else {}
    if protocol == "roth":
        schedule = {name: record[name].value for name in (*schedule, *("epochs", "batch_size") * ablation)}
    return {name: record[f"loss.{option}"].value for name, option in OPTION_OF.items()} | schedule


def published_settings(params: Params, method: str, setting: str = "", ablation: bool = False) -> dict[str, Setting]:
    """Settings of Table 1, and of Table 2 for its runs (see `Study.published`): a method of the paper by the released
    runs, a baseline by the released code's defaults, and other distances than EL-nivMF by the released ablation, which
    has all distances in the notebooks on them. Under another protocol than the paper's only the loss of its own methods
    has published settings; baselines are the runs that other papers have."""
    released = released_for(params.dataset, params.backbone, params.embedding_size)
    if setting == TABLE_2:
        return for_joint(released)
    record = {name: one for name, one in released.items() if name not in SCHEDULED} | _TABLE_1
    if method not in OWN:
        record = _TABLE_1 | COMPARED.get(method, {})
    elif method == JOINT:
        record = for_joint(record)
    elif method == "EL-nivMF" and not ablation:
        del record["loss.omega"]
    else:
        record = ablation_of(params.dataset, method)
    if ablation and method not in DISTANCES:
        record |= {name: one for name, one in ablation_of(params.dataset).items() if not name.startswith("loss")}
    if protocol_of(params) == "roth":
        return record
    return {name: one for name, one in record.items() if method in OWN and name.startswith(("loss.", "loss_lr."))}


def for_joint(record: dict[str, Setting]) -> dict[str, Setting]:
    return {name.replace("loss_lr.", "loss_lr.probabilistic."): setting for name, setting in record.items()}


nivmf_study = functools.partial(
    Study,
    paper="nivmf",
    claims=TESTS,
    shared={"paper": {"protocol": "roth"}},
    decides=decided,
    published=published_settings,
)
nivmf_ablation = functools.partial(
    nivmf_study,
    decides=lambda choice: decided(choice, ablation=True),
    published=lambda params, method, setting="": published_settings(params, method, setting, ablation=True),
)
