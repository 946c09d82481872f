"""A run that several notebooks have is one run; methods that are compared differ in what the comparison is about."""

import pytest
from planned import contents, planned

# by method: notebook and the setting under which it has the run at the default point
POINTS = {
    "PFML": {"13": "M=15", "14": "delta=0.2", "15": "alpha=3", "16": "delta_rep=0.2"},
    "EL-nivMF": {"22": "", "24": "", "25": "", "26": ""},
    "C2-CCP-L": {"44": "", "42": "M=8", "43": "M=8;pool=12", "45": "batch=32"},
    "PLM": {"52": "N_rho=100", "53": "m=3", "54": "N_alpha=4;N_beta=0.5", "55": "delta=1", "56": ""},
}
KEPT = ("keep_history", "eval_every")  # of the first seed without a setting


@pytest.mark.parametrize("method", POINTS)
def test_the_default_point_of_the_ablations_is_one_run(method):
    points = set()
    for name, setting in POINTS[method].items():
        specs = planned(name, seeds=1)[1]
        points.add(frozenset(contents(s for s in specs if (s.method, s.setting) == (method, setting))))
    assert len(points) == 1 and points.pop()


@pytest.mark.parametrize(
    ("name", "methods", "fields"),
    [
        ("12", ("PFML",), {"loss_clip_value", "loss_options", "samples_per_class", *KEPT}),
        ("33", ("MFCont",), {"embedding_size"}),
        ("34", ("MFCWMS",), {"loss_options"}),
        ("35", ("MFCWMS",), {"batch_size"}),
        ("36", ("MFCWMS",), {"loss_options"}),
        ("37", ("MFCont",), {"loss_options", "epochs"}),
        ("41", ("C2", "C2-CCP-L"), {"scheme", "scheme_options", "loss_lr"}),
        ("41", ("MS", "MS-CCP-L"), {"scheme", "scheme_options", "loss_lr"}),
    ],
)
def test_what_is_compared_is_all_that_differs(name, methods, fields):
    specs = [spec for spec in planned(name, "small", seeds=1)[1] if spec.method in methods and spec.loss]
    runs = [spec.as_dict() for spec in specs]
    assert {spec.method for spec in specs} == set(methods)
    assert {field for field in runs[0] if len({str(run[field]) for run in runs}) > 1} == fields
