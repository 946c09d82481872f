"""The fifteen claims of "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning", each with its test.

Metrics, beside those of dmlrepro.metrics (recalls and precisions in percent):
  seconds_ratio            time of a training step over that of ProxyNCA++ in the same process; `seed` = repetition
  retrieval_seconds_ratio  the same for embedding and ranking the test images
  rms_relative_error       of the fitted log C_M(kappa), kappa = 10..50, root mean square, percent; setting "dim=M"
  gradient_error           largest relative deviation of autograd's d loss / d cos from nivmf Eqs. 8-9; a row per draw
  norm_sensitivity         largest |d logit / d log norm| of the embedding over the largest |logit|; a row per draw
  entropy_slope            rank correlation of the posterior's entropy with the norm, direction fixed; a row per draw
  growth_over_l2           how many times |d logit / d cos| grows from norm 1 to norm N, over the same of L2, which is
                           N; settings "norm=N", a row per draw
  crop_correlation, occlusion_correlation, blur_correlation  mean over images of the rank correlation of embedding norm
                           with the strength of that corruption
  norm_auroc               area under the ROC curve of the norm, images the cosine model retrieves right against wrong

What is compared must have gained over the network that its training began with.
"""

import math

from experiments.analysis import claims
from experiments.analysis.claims import ClaimTest, control, drop, flat, higher, lower, on_a_par

UNEQUAL_RATES = "the learning rates differed by a factor of six, and a network that moves farther is less diverse"
EUCLIDEAN = "retrieval=euclidean"
JOINT = "ProxyAnchor+EL-nivMF"
DISTANCES = ("Cosine", "L2", "nivMF", "EL-vMF", "B-vMF", "KL-vMF", "EL-nivMF")
BESIDE_L2 = tuple(name for name in DISTANCES if name != "L2")
CORRUPTIONS = ("crop", "occlusion", "blur")

# what "a mean squared error smaller than 0.1 %" can mean: (interpretation, metric, bound)
INTERPRETATIONS = (
    ("root mean square of the relative error", "rms_relative_error", "0.1"),
    ("mean squared relative error", "rms_relative_error", f"{100 * math.sqrt(0.1 / 100):.4g}"),
    ("mean squared error of log C", "mean_squared_error", "0.001"),
)

# fmt: off
TESTS = claims.planned((
    ClaimTest("nivmf-01", "22_nivmf_distances",
        (higher("EL-nivMF", "Cosine"),),
        "0.5 points: a third of the published gain on birds (1.6), above the reported spread (0.4)",
        "SOP, and that few samples per class make the gain small there",
        changed="2026-11: against Cosine, which is ProxyNCA with the same initial proxies, rates and trials; against "
                "ProxyNCA++ as published more than the distance differed, and EL-nivMF alone was tuned"),
    ClaimTest("nivmf-02", "20_nivmf_retrieval",
        (higher(JOINT, "ProxyAnchor", by=0.3),),
        "0.3 points: a quarter of the published gain on cars (1.2); omega as tuned, which is what the paper optimises",
        "SOP",
        revised=claims.TUNED_VALUE),
    ClaimTest("nivmf-03", "20_nivmf_retrieval",
        tuple(higher(subject, "MultiSimilarity", "Margin", metric=name)
              for subject in ("EL-nivMF", JOINT) for name in ("R@1", "mAP@1000")),
        "0.5 points, as for pfml-01",
        "SOP, where the paper's own table disagrees",
        changed="2026-11: only where the same search chose the settings of all methods compared", universal=True),
    ClaimTest("nivmf-04", "21_nivmf_ablation_omega",
        (higher(f"{JOINT};omega=0.1..10", f"{JOINT};omega=0", f"{JOINT};omega=100..1000"),
         flat(f"{JOINT};omega=0.1..10", f"{JOINT};omega=1", within=2.0),
         control(higher(f"{JOINT};omega=0.1..10", f"{JOINT};omega=1000", "ProxyAnchor", by=0.3))),
        "0.5 points over either end, for the mean of omega in 0.1..10, where every released value lies, so that none "
        "is chosen by its result; a plateau: within 2 points of omega = 1, half of the published gain",
        "SOP, and the size of the gain (4 points)", ingredient="weight omega"),
    ClaimTest("nivmf-05", "22_nivmf_distances",
        (higher("nivMF", "L2", by=0.3),
         higher("L2", "Cosine", by=0.3)),
        "0.3 points: the spread the paper reports for these models"),
    ClaimTest("nivmf-06", "22_nivmf_distances",
        (higher("EL-nivMF", "EL-vMF", "B-vMF", "KL-vMF", by=0.3),
         higher("EL-vMF", "B-vMF", by=0.3),
         higher("B-vMF", "KL-vMF", by=0.1),
         higher("EL-vMF - B-vMF", "B-vMF - KL-vMF", by=0.1),
         flat("EL-vMF", "L2", within=0.6)),
        "0.3 points as for nivmf-05, 0.1 where the paper calls a gap small; within one standard deviation: 0.6, about "
        "the largest it reports for these models"),
    ClaimTest("nivmf-07", "22_nivmf_distances",
        (higher("nivMF", "Cosine"),
         higher("EL-nivMF", "nivMF", by=0.1)),
        "0.5 points for the first step (published 1.7 and 2.1), 0.1 for the second (0.3 and 0.6)"),
    ClaimTest("nivmf-08", "22_nivmf_distances",
        (*(lower(f"{name};{EUCLIDEAN}", name, by=0.1)
           for name in DISTANCES),
         higher(drop("L2", EUCLIDEAN), *(drop(name, EUCLIDEAN) for name in BESIDE_L2), by=0.1),
         *(on_a_par(name, "L2", within=10.0) for name in BESIDE_L2)),
        "0.1 points: the claim is about all models, however little each loses; the same for the order of the losses; "
        "by cosine each at most 10 percent below L2, so that it had as much to lose",
        "the size of the largest loss (5.34 points)",
        changed="2026-11: needs R@1 on a par by cosine, since who has learned nothing loses nothing",
        universal=True),
    ClaimTest("nivmf-09", "26_nivmf_cost_and_samples",
        (claims.cheaper("EL-nivMF;samples=5", "1.25"),
         *(claims.cheaper(name, "1.05") for name in ("EL-vMF", "B-vMF", "KL-vMF")),
         flat("EL-nivMF", "1", within=0.1, metric="retrieval_seconds_ratio", about="cost")),
        "the paper's 25 percent at the most samples it names, 5; negligible: less than 5 percent; unchanged: within 10",
        "the published hardware", network="resnet50",
        changed="2026-11: ResNet-50 alone, since a ratio of times on a smaller network says nothing about it"),
    ClaimTest("nivmf-10", "24_nivmf_norm_is_certainty",
        (*(lower("EL-nivMF", "0", by=0.1, metric=f"{name}_correlation") for name in CORRUPTIONS),
         higher("EL-nivMF", "0.5", by=0.02, metric="norm_auroc"),
         *(control(lower("EL-nivMF", "Cosine", by=0.1, metric=f"{name}_correlation")) for name in CORRUPTIONS),
         control(higher("EL-nivMF", "Cosine", by=0.02, metric="norm_auroc"))),
        "a rank correlation of 0.1, taken within images and so within classes; 0.02 of AUROC above chance; both as "
        "much beyond those of plain Cosine, whose loss does not see the norm",
        "images whose ambiguity only a person can see",
        changed="2026-11: beyond plain Cosine as well, whose norm was seen to predict errors too",
        revised=claims.OWN_CONTROL),
    ClaimTest("nivmf-11", "25_nivmf_diversity",
        tuple(higher(*pair, by=by, metric=name, relative=True)
              for name in ("class_diversity", "feature_diversity")
              for *pair, by in (("EL-vMF", "Cosine", 3.0), ("EL-nivMF", "Cosine", 3.0), ("EL-nivMF", "EL-vMF", 1.0)))
        + tuple(on_a_par(*pair, within=10.0, metric=name) for pair, name in (
            (("EL-vMF", "Cosine"), "R@1"), (("EL-nivMF", "Cosine"), "R@1"),
            (("EL-vMF", "Cosine"), "MAP@R"), (("EL-nivMF", "Cosine"), "MAP@R"),
            (("Cosine", "EL-vMF", "EL-nivMF"), "MAP@R"))),
        "3 percent over cosine: half of the smallest published rise (6); 1 of non-isotropy (published 1 to 14); R@1 at "
        "most 10 percent below cosine's, MAP@R within 10 percent of it; one learning rate, the rest tuned",
        changed="2026-11: needs R@1 on a par, since embeddings that have learned nothing are diverse",
        revised=UNEQUAL_RATES),
    ClaimTest("nivmf-12", "26_nivmf_cost_and_samples",
        (lower("EL-nivMF;normalizer=none", "EL-nivMF", by=2.0, may_fail=True),),
        "severely: 2 points, as much as the whole gain of the method over cosine", ingredient="normaliser D(K)"),
    ClaimTest("nivmf-13", "26_nivmf_cost_and_samples",
        (flat("EL-nivMF;samples=5..20", "EL-nivMF;samples=20", within=1.0),),
        "alike: within 1 point of N = 20, half of the method's gain over cosine", ingredient="Monte-Carlo samples"),
    ClaimTest("nivmf-14", "23_nivmf_normalizer",
        tuple(claims.at_most(f"quadratic;dim={dim}", bound, name, interpretation=interpretation)
              for interpretation, name, bound in INTERPRETATIONS for dim in (128, 512)),
        "0.1 percent as printed, in each sense that the words can have; a mean squared relative error of 0.1 percent "
        "is a root mean square of 3.16 percent",
        "insensitivity to the coefficients; linear and exponential fits",
        changed="2026-11: the verdict depends on the reading; it was judged by the first alone",
        not_testable="the unit of the mean squared error is not stated", revised=claims.NOT_TESTABLE),
    ClaimTest("nivmf-15", "22_nivmf_distances",
        (*(claims.at_most(name, "0", "gradient_error", tolerance=1e-6, identity=True) for name in ("L2", "Cosine")),
         claims.at_most("Cosine", "0", "norm_sensitivity", tolerance=1e-6, identity=True),
         claims.below("L2", "0", "entropy_slope", by=0.5, identity=True),
         claims.below("B-vMF", "0", "entropy_slope", by=0.5),
         claims.at_least("B-vMF;norm=10..1000", "0.5", "growth_over_l2"),
         claims.at_most("B-vMF;norm=10..1000", "2", "growth_over_l2")),
        "identities, up to the rounding of float64; flatter posteriors: a rank correlation below -0.5 in every draw; "
        "behaves like: from norm 1 to 10, 100 and 1000 the gradient grows within a factor of two as it does with L2",
        changed="2026-11: correlations below -0.5, since exactly zero passed; that B-vMF behaves like L2 was tested by "
                "the sign of these alone"),
))
# fmt: on
