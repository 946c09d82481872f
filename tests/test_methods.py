"""Records of methods: what they state can be built, is searched and printed, and is what the papers published."""

import json

import pytest

from experiments import papers
from experiments.files import repository_root
from experiments.meanfield.methods import METHODS as MEANFIELD
from experiments.methods import BASELINES, NOT_REPORTED, searched_ranges, spec_of
from experiments.nivmf.methods import METHODS as NIVMF
from experiments.params import Params
from experiments.pfml.methods import METHODS as PFML
from experiments.pfml.retrieval import Retrieval
from experiments.plm.methods import METHODS as PLM
from experiments.report import catalogue
from experiments.study import Study
from experiments.training.builders import build_loss, defaults

METHODS = NIVMF | PFML | MEANFIELD
PLAIN = Study("99_example", Params)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"profile": "small"}, ("fire6", 2)),
        ({"profile": "small", "dataset": "cars-subset"}, ("fire6", 2)),
        ({"profile": "small", "dataset": "folder:somewhere"}, ("fire6", 2)),
        ({"profile": "small", "train_from": "head"}, ("head", None)),
        ({"profile": "small", "train_from": ""}, (None, None)),
        ({"profile": "small", "dataset": "omniglot"}, (None, None)),  # from scratch everything learns
        ({"profile": "small", "weights": "none"}, (None, None)),
        ({"profile": "quick"}, ("head", None)),
        ({"profile": "quick", "train_from": "block3"}, ("block3", None)),  # a glyph's mirror image is another
        ({"profile": "paper"}, (None, None)),
    ],
)
def test_what_is_trained_and_in_how_many_views_follows_from_the_profile_and_the_weights(values, expected):
    spec = spec_of(BASELINES["ProxyAnchor"], PLAIN.configured(values))
    assert (spec.train_from, spec.cached_views) == expected
    assert spec_of(BASELINES["untrained"], PLAIN.configured(values)).train_from is None


def test_a_block_of_another_network_is_an_error_that_lists_its_own():
    params = PLAIN.configured({"profile": "small", "backbone": "resnet18"})
    with pytest.raises(ValueError, match=r"block of resnet18, conv1.*layer4\.1, head, got 'fire6'"):
        spec_of(BASELINES["ProxyAnchor"], params)


@pytest.mark.parametrize(
    "name", [name for name, method in (METHODS | PLM).items() if method.loss and "algorithm" not in method.fields]
)
def test_experiments_train_as_the_losses_recommend(name):
    """Rates and clipping of a run are those of `loss.parameter_groups`, to the last digit."""
    params = PLAIN.configured({"lr": 3e-4})
    spec = spec_of((METHODS | PLM)[name], params)
    loss = build_loss(spec, num_classes=3, embedding_size=8)
    names = {id(parameter): key for key, parameter in loss.named_parameters()}
    groups = loss.parameter_groups(params.lr)
    rates = {names[id(parameter)]: group["lr"] for group in groups for parameter in group["params"]}
    clips = {group.get("clip_value") for group in groups}
    assert rates == {key: spec.loss_lr.get(key, spec.loss_lr.get("*", spec.lr)) for key in names.values()}
    assert clips <= {spec.loss_clip_value, spec.clip_value} and (clips or not names)
    assert (spec.loss_clip_value or spec.clip_value) in clips or not names


@pytest.mark.parametrize("name, of_five, of_none", [("ProxyAnchor", None, None), ("Triplet", 5, 4), ("PFML", 5, None)])
def test_batches_are_made_as_the_method_needs_them(name, of_five, of_none):
    for given, expected in ((5, of_five), (0, of_none)):
        params = PLAIN.configured({"samples_per_class": given})
        assert spec_of((PFML | BASELINES)[name], params).samples_per_class == expected


def test_a_notebook_without_the_parameters_of_a_method_trains_it_as_those_that_have_them():
    plain, own = PLAIN.configured({}), Retrieval.configured({})
    assert spec_of(PFML["PFML"], plain) == spec_of(PFML["PFML"], own)
    options = spec_of(NIVMF["EL-nivMF"], plain).loss_options
    assert (options["num_samples"], options["embedding_scale"]) == (5, 30.0)


@pytest.mark.parametrize("notebook", ["10", "20", "22", "32", "41", "50"])
@pytest.mark.parametrize("dataset", ["cub", "cars", "sop"])
def test_the_profile_paper_has_what_is_published(notebook, dataset):
    """Each setting of each record exists, says where it stands, and is that of the runs."""
    study = catalogue.find(notebook)
    params = study.configured({"profile": "paper", "dataset": dataset})
    for spec in study.specs_untrained(params):
        if spec.loss is None or spec.seed or spec.setting:
            continue
        options = defaults(spec.loss) | dict(spec.loss_options)
        run = vars(spec) | options | {f"loss.{name}": value for name, value in options.items()}
        run |= {f"algorithm_options.{name}": value for name, value in spec.algorithm_options.items()}
        run |= {f"loss_lr.{name}": value for name, value in spec.loss_lr.items()}
        run |= {"loss_lr": max(spec.loss_lr.values(), default=None)}
        for name, setting in params.published(spec.method).items():
            assert setting.source and (setting.value is not None or setting == NOT_REPORTED), name
            assert setting == NOT_REPORTED or run[name] == pytest.approx(setting.value), (spec.method, name)


def test_every_method_has_a_colour_of_its_own_and_with_the_marker_it_tells_them_apart():
    names = papers.names()
    assert all(names.colors.values()) and len({*names.colors.values()}) == len(names.colors) > 50
    assert len({(names.color(name), names.marker(name)) for name in names.colors}) == len(names.colors)


def test_the_ranges_are_those_that_the_committed_searches_varied():
    records = [json.loads(path.read_text()) for path in (repository_root() / "results/small/searches").glob("*.json")]
    assert len({record["method"] for record in records}) > 40
    for record in records:
        if record.get("metric") == "R@1":  # of a network whose recipe names rates
            assert record["ranges"].keys() == {"lr"}
            continue
        ranges = searched_ranges(papers.methods()[record["method"]])
        varied = {name: bounds._asdict() for name, bounds in ranges.items()}
        assert varied == record["ranges"], record["method"]
