"""Parameters are strict: a misspelt name or a wrong type stops a notebook before any work."""

import functools
import itertools
import re
from pathlib import Path

import nbformat
import pytest
from planned import planned

from experiments import cli
from experiments.params import Params
from experiments.pfml.retrieval import Retrieval
from experiments.report import catalogue
from experiments.study import Study

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
SHARED = [*Params.defaults()]


@functools.cache
def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def parameters_source(name: str) -> str:
    notebook = read(name)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    return cell.source


def parameters_cell(name: str) -> dict:
    namespace: dict = {}
    exec(parameters_source(name), namespace)
    return {key: value for key, value in namespace.items() if not key.startswith("__")}


def test_the_interval_between_evaluations_is_the_readers():
    usual, changed = (planned("20", **more)[1] for more in ({}, {"eval_every_epochs": 20}))
    for before, after in zip(usual, changed, strict=True):
        if before.loss:
            assert after.eval_every is None and after.eval_every_epochs == 20
            assert after.replace(eval_every=before.eval_every, eval_every_epochs=before.eval_every_epochs) == before


def test_every_notebook_is_in_the_catalogue_and_the_reverse():
    assert sorted(catalogue.studies()) == NOTEBOOKS


def test_the_parameters_cell_shows_the_notebooks_own_in_at_most_a_dozen_lines_with_comments():
    for name in NOTEBOOKS:
        defaults = catalogue.find(name).params.defaults()
        cell = {key: tuple(v) if isinstance(v, list) else v for key, v in parameters_cell(name).items()}
        assert cell.items() <= defaults.items(), name
        own = set(defaults) - set(SHARED)
        assert own | {"profile"} <= set(cell) <= own | {"profile", "dataset", "seeds"}, name
        lines = [line for line in parameters_source(name).splitlines() if line]
        assert len(lines) <= 12 and all("#" in line for line in lines), name


def test_the_shared_parameters_are_explained_once_and_printed(capsys):
    assert cli.main(["params"]) == 0
    assert re.findall(r"^([a-z_]+): ", capsys.readouterr().out, re.MULTILINE) == SHARED


EXAMPLE = Study("99_example", Params)


def test_a_parameter_that_the_cell_does_not_show_is_injected_and_a_misspelt_one_is_not():
    namespace: dict = {}
    exec(parameters_source("14_pfml_ablation_delta"), namespace)
    assert "steps" not in namespace
    study = catalogue.find("14")
    assert study.from_cell(namespace | {"steps": 7, "lr": 0.5}).params.stem.endswith("--lr=0.5,steps=7")
    with pytest.raises(ValueError, match=r"no parameter 'step'.*did you mean 'steps'"):
        study.from_cell(namespace | {"step": 7})


def in_kernel(*cells: str, **left) -> Params:
    """The parameters of 99_example after cells of a kernel; `left` is what others have left in it."""
    namespace: dict = dict(left)
    for source in cells:
        if source != "1 +":
            exec(source, namespace)
    return EXAMPLE.from_cell(namespace | {"In": ["", *cells, "study = EXAMPLE.from_cell(globals())"]}).params


def test_a_kernel_counts_what_the_parameters_cell_and_papermill_define():
    cell = 'profile = "quick"\nseeds = 2'
    assert in_kernel(cell, steps=9, step=9).steps != 9
    assert (
        in_kernel(f"{cell}\nsteps = 3 * 3", "# Parameters\nlr = 0.5\nprofile = 'small'").stem
        == "99_example--lr=0.5,seeds=2,steps=9"
    )
    assert in_kernel(f"{cell}\nstep = 9", cell).seeds == 2  # a misspelt name that is corrected is forgotten
    assert in_kernel(f"{cell}\nsteps = 9", "1 +", cell).stem == "99_example--seeds=2"
    assert in_kernel(f"{cell}\nfolder = '/data'").seeds == 2
    for wrong in ("step = 9", "# Parameters\nlearning_rate = 0.1"):
        with pytest.raises(ValueError, match=r"99_example has no parameter '(step|learning_rate)'"):
            in_kernel(cell, wrong)


def test_none_for_weights_is_none_and_for_others_what_the_profile_decides():
    assert EXAMPLE.configured({"weights": None}).spec_options()["weights"] is None
    assert EXAMPLE.configured({"weights": None}).stem == EXAMPLE.configured({"weights": "none"}).stem
    assert EXAMPLE.configured({"seeds": None}) == EXAMPLE.configured({}) and EXAMPLE.configured({}).weights == "symbols"


def test_a_budget_that_a_paper_has_on_a_data_set_is_that_of_its_searches():
    def searched(name, **given):
        return catalogue.find(name).configured({"profile": "small", **given}).search_budget()

    usual, asked = ({"steps": steps, "epochs": 0} for steps in (600, 900))
    assert searched("41", dataset="omniglot") == searched("41", dataset="omniglot", steps=600) == usual
    assert searched("41", dataset="omniglot", steps=900) == asked
    assert searched("10", dataset="omniglot")["steps"] == 1500
    assert searched("41")["steps"] == 100, "birds have a budget for searches of their own"


def test_lists_whose_items_hold_the_sign_that_joins_them_have_names_of_their_own():
    both = (["ProxyAnchor+EL-nivMF"], ["ProxyAnchor", "EL-nivMF"])
    one, other = (catalogue.find("20").configured({"methods": methods}).stem for methods in both)
    assert one != other


@pytest.mark.parametrize(
    "name, value, hint",
    [
        ("steps", 3.5, ""),
        ("steps", True, ""),
        ("steps", "many", ".* got 'many' of type str$"),
        ("lr", "1e-5", ".*YAML reads 1e-5 as a string"),
        ("profile", 3, ""),
    ],
)
def test_a_wrong_type_is_an_error_that_names_the_parameter(name, value, hint):
    with pytest.raises(TypeError, match=f"{name} must be{hint}"):
        EXAMPLE.configured({name: value})


@pytest.mark.parametrize(
    "name, values, expected",
    [
        ("10", {"methods": "PFML, ProxyNCA++"}, ("PFML", "ProxyNCA++")),
        ("10", {"methods": "PFML"}, ("PFML",)),
        ("15", {"alphas": "0,3,4.5"}, (0.0, 3.0, 4.5)),
        ("15", {"alphas": 3}, (3.0,)),
        ("33", {"dims": "[512, 64]"}, (512, 64)),
        ("41", {"methods": '["C1", "C2"]'}, ("C1", "C2")),
        ("20", {"lr_drop_epochs": ""}, ()),
    ],
)
def test_a_list_as_papermill_gives_it_on_the_command_line(name, values, expected):
    ((parameter, _),) = values.items()
    given = catalogue.find(name).configured(values)
    assert getattr(given, parameter) == expected
    assert given.stem == catalogue.find(name).configured({parameter: list(expected)}).stem


@pytest.mark.parametrize("name, values", [("33", {"dims": "64,big"}), ("33", {"dims": 64.5}), ("10", {"methods": [1]})])
def test_an_item_of_a_wrong_type_says_how_papermill_takes_a_list(name, values):
    (parameter,) = values
    with pytest.raises(TypeError, match=rf"{parameter}\[\d\] must be .*-p {parameter} A,B or as -y '{parameter}: \["):
        catalogue.find(name).configured(values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"profile": "fast"}, "unknown profile 'fast'.*quick, small, paper"),
        ({"dataset": "birds"}, "unknown dataset 'birds'.*glyphs"),
        ({"dataset": "cub"}, "unknown dataset 'cub' for profile 'quick'; profile = 'small' or 'paper' has"),
        ({"seeds": 0}, "seeds must be greater than 0, got 0"),
        ({"warmup_epochs": -1.0}, "warmup_epochs must be greater than or equal to 0, got -1.0"),
        ({"steps": 3, "epochs": 2}, "give exactly one of steps and epochs, got steps=3, epochs=2"),
        ({"backbone": "conv5"}, "unknown backbone 'conv5'; did you mean 'conv4'"),
        ({"weights": "imagnet"}, "weights: no file imagnet; give an existing file, 'imagenet', 'symbols' or none"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(values, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Retrieval.from_cell(values)


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("10", {"methods": []}, r"methods must have at least one item and none twice, got \[\]"),
        ("10", {"methods": ["PFLM"]}, r"unknown method 'PFLM'; did you mean 'PFML'"),
        ("10", {"alpha": 60.0}, "alpha=60.0 .*lower alpha"),
        ("10", {"precision": "float16"}, "precision must be 'float32' or 'bfloat16'"),
        ("11", {"noise_levels": [0.0, 0.4]}, "noise_levels must have 0.2, which other levels are compared with"),
        ("11", {"noise_levels": [0.0, 0.2, 1.2]}, "label_noise must be less than 1, got 1.2"),
        ("13", {"numbers": [1, 2]}, r"numbers must have 15, .*got \[1, 2\]; add it"),
        ("17", {"network_image": 0}, "no parameter 'network_image'; did you mean 'network_images'"),
        ("22", {"backbone": "resnet18", "weights": "none"}, "embedding_scale is known for conv4"),
    ],
)
def test_what_a_run_would_refuse_is_an_error_in_the_parameter_cell(name, values, message):
    study = catalogue.find(name)
    with pytest.raises(ValueError, match=message):
        study.from_cell(parameters_cell(study.name) | values)


def test_the_parameter_cell_accepts_what_is_committed_and_its_sweeps_have_the_level_of_the_figure():
    for name in NOTEBOOKS:
        study = catalogue.find(name)
        params = study.from_cell(parameters_cell(name)).params
        source = "\n".join(cell.source for cell in read(name).cells)
        drawn = {float(level) for level in re.findall(r"charts\.ablation\(.*reference=([0-9.]+)", source)}
        levels = [level for levels in study.references.values() for level in levels]
        assert drawn <= {getattr(params, level) if isinstance(level, str) else level for level in levels}, name


def test_a_parameter_is_compared_with_what_the_profile_means_for_the_dataset_and_the_protocol():
    usual = EXAMPLE.configured({"profile": "small"})
    said = EXAMPLE.configured({"profile": "small", "lr": usual.lr, "batch_size": usual.batch_size})
    assert said.stem == usual.stem and said.conditions() == usual.conditions() and not said.changed

    def stem(**values):
        return Retrieval.configured(values).stem.removeprefix("10_pfml_retrieval--")

    cars = {"profile": "small", "dataset": "cars-subset"}  # 112 pixels there, 128 for the profile's first set
    assert stem(**cars, image_size=112) == "dataset=cars-subset"
    assert stem(**cars, image_size=128) == "dataset=cars-subset,image_size=128"
    mlrc = {"profile": "paper", "protocol": "mlrc"}  # 10 seeds and 50 trials there, 5 and none for conventional
    assert stem(**mlrc, seeds=5, search_trials=0) == "protocol=mlrc,search_trials=0,seeds=5"
    assert stem(**mlrc, seeds=10, search_trials=50) == "protocol=mlrc"


def test_many_changes_still_fit_a_file_name_and_differ():
    many = {"methods": ["PFML", "CPML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"], "alpha": 2.5}
    many |= {"backbone": "squeezenet1_1", "weights": "imagenet", "embedding_size": 32, "image_size": 48, "lr": 1e-5}
    stems = [Retrieval.configured(many | {"warmup_epochs": w}).stem for w in (2.0, 3.0)]
    assert all(len(stem) <= 200 and stem.startswith("10_pfml_retrieval--alpha=2.5,") for stem in stems)
    assert stems[0] != stems[1] and stems[0][:180] == stems[1][:180]


OWN = ["folder:birds/my photographs", "manifest:tables/shoes.csv"]


def test_own_images_are_accepted_at_every_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("DMLREPRO_DATA", str(tmp_path))
    files = [f"{label}/{number}.jpg" for label in "abcdefgh" for number in range(8)]
    for file in files:  # notebook 01 counts them, to fit its batches
        path = tmp_path / "birds" / "my photographs" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "tables").mkdir()
    rows = [f"../birds/my photographs/{file},{file[0]}" for file in files]
    (tmp_path / "tables" / "shoes.csv").write_text("\n".join(["path,label", *rows]))
    for name, dataset, profile in itertools.product(NOTEBOOKS, OWN, ("quick", "small", "paper")):
        notebook = catalogue.find(name)
        params = notebook.configured({"profile": profile, "dataset": dataset})
        assert {spec.dataset for spec in notebook.specs_untrained(params)} <= {dataset}, (name, profile)


@pytest.mark.parametrize("dataset", OWN)
def test_own_images_have_the_recipe_of_a_set_that_is_like_them(dataset):
    def recipe(profile, dataset):
        params = EXAMPLE.configured({"profile": profile, "dataset": dataset})
        return params.spec_options() | {"dataset": ""}

    from_scratch = {"weights": None, "steps": 300, "image_size": 32, "test_resize": 32}
    assert recipe("quick", dataset) == recipe("quick", "glyphs") | from_scratch
    assert recipe("small", dataset) == recipe("small", "cub-subset")
    assert recipe("paper", dataset) == recipe("paper", "cub")


def test_a_network_has_its_own_recipe_and_names_a_results_file_alone():
    params = EXAMPLE.configured({"profile": "small", "backbone": "mobilenet_v2"})
    assert params.stem == "99_example--backbone=mobilenet_v2"
    assert (params.train_from, params.steps, params.epochs, params.seeds) == ("", 0, 16, 5)
    assert params.spec_options()["precision"] == params.precision == "bfloat16"
    stated = [catalogue.find(n).configured({"profile": "small", "backbone": "mobilenet_v2"}) for n in ("41", "50")]
    assert {(of_notebook.steps, of_notebook.epochs) for of_notebook in stated} == {(0, 16)}
    other = EXAMPLE.configured({"profile": "small", "backbone": "mobilenet_v2", "precision": "float32"})
    assert other.spec_options()["precision"] == "float32" and other.stem.endswith(",precision=float32")
    reader = EXAMPLE.configured({"profile": "small", "backbone": "mobilenet_v2", "train_from": "features.14"})
    assert reader.train_from == "features.14" and reader.changed.keys() == {"backbone", "train_from"}


def test_own_images_name_a_file_safely_and_shortly():
    def stem(dataset):
        return EXAMPLE.configured({"dataset": dataset}).stem

    assert re.fullmatch(r"99_example--dataset=my_photographs-[0-9a-f]{8}", stem(OWN[0]))
    assert re.fullmatch(r"99_example--dataset=shoes\.csv-[0-9a-f]{8}", stem(OWN[1]))
    assert stem("folder:a/birds") != stem("folder:b/birds")
    assert re.fullmatch(r"99_example--dataset=birds-[0-9a-f]{8}", stem("folder:birds/"))
    long = stem("folder:" + "鳥" * 200)
    assert len(long.encode()) <= 255 and long.startswith("99_example--dataset=鳥")
    for nowhere in ("photographs:birds", "birds"):
        with pytest.raises(ValueError, match=r"unknown dataset.*folder:PATH or manifest:FILE\.csv"):
            stem(nowhere)
