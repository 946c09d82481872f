"""The fifteen claims of "Mean Field Theory in Deep Metric Learning" and the test of each, as data.

Metrics, beside those of dmlrepro.metrics (recalls and precisions in percent):
  best_epoch               epoch of the best MAP@R on the test images among all evaluations, as in the paper's tables
  slope_after_best         change of MAP@R per epoch from there to the last evaluation
  best_beta                the beta of the best MAP@R at one delta, by seed
  field_offset             mean distance on the sphere of a mean field, or proxy, from the mean embedding of its class,
                           over the mean distance of the class's embeddings from that mean
  field_offset;fields=solved   the same of the fields that minimise the loss on the trained network, which is frozen
  field_gradient           the norm of the loss's gradient at these fields over that at the fields of the last step
  regularizer              the regulariser of Eq. 8 or 10 without its weight
  exponent                 slope of log seconds over log samples from 4,000 on, the whole data in one batch; `seed` =
                           repetition

Since 2026-11 what is compared must have gained over the network that its training began with.
"""

from experiments.analysis import claims
from experiments.analysis.claims import ClaimTest, control, flat, higher, lower, on_a_par, rising

MEAN_FIELDS = ("MFCont", "MFCWMS")
SCORE = {"metric": "MAP@R"}
METRICS = ("MAP@R", "P@1", "RP")
POINT = "MFCWMS;beta=80;delta=0.8"
MATCHED = "loss_lr=0.2"  # ProxyAnchor whose proxies have the rate of mean fields
SAME_RATE = "rate=as MFNCA"  # ProxyNCA++ that starts and learns as the first term of MFNCA
TOO_SHORT = "four epochs end before the methods have reached their best"
ALSO_MOVED = "four epochs end before convergence can differ, and a search at alpha = 0.01 had moved beta and delta"
AT_OPTIMUM = "the sentence speaks of the optimal fields, and training stops short of them"


# fmt: off
TESTS = claims.planned((
    ClaimTest("meanfield-01", "31_meanfield_mlrc",
        (higher("MFCont", "Cont", by=0.3, **SCORE),
         higher("MFCWMS", "CWMS", by=0.3, on=("cub", "sop"), **SCORE),
         lower("MFCWMS", "CWMS", by=0.2, on=("cars",), **SCORE)),
        "0.3 points: half of the smaller published gain on birds at 128 dimensions (0.6); 0.2, half of the smaller "
        "published loss of MFCWMS on cars (0.4)",
        "SOP; that P@1 at 512 dimensions is an exception on birds", protocol="mlrc", decides="separated"),
    ClaimTest("meanfield-02", "31_meanfield_mlrc",
        tuple(higher(name, "ArcFace", "CosFace", "MultiSimilarity", "ProxyNCA++", "ProxyAnchor", by=0.2,
                     on=("cub", "sop"), **SCORE) for name in MEAN_FIELDS)
        + tuple(lower(name, "ProxyAnchor", by=0.2, on=("cars",), **SCORE) for name in MEAN_FIELDS),
        "0.2 points: half of the published margin over the best baseline on birds (0.4), and of the smaller distance "
        "to the best on cars (0.5), which is ProxyAnchor",
        "SOP; MultiSimilarity without its miner", protocol="mlrc", decides="separated", universal=True),
    ClaimTest("meanfield-03", "32_meanfield_conventional",
        tuple(higher(name, "ProxyAnchor", by=0.2, on=("cub", "sop", "inshop"), **SCORE) for name in MEAN_FIELDS)
        + tuple(lower(name, "ProxyAnchor", by=0.2, on=("cars",), **SCORE) for name in MEAN_FIELDS),
        "0.2 points: the published gain on birds, the smallest; an eighth of the smaller published loss on cars (1.6); "
        "over twelve epochs",
        "SOP and In-Shop; that gains grow with the data set", revised=TOO_SHORT),
    ClaimTest("meanfield-04", "32_meanfield_conventional",
        tuple(lower(name, "ProxyAnchor", by=0.5, metric="best_epoch") for name in MEAN_FIELDS)
        + tuple(control(lower(name, f"ProxyAnchor;{MATCHED}", by=0.5, metric="best_epoch")) for name in MEAN_FIELDS)
        + tuple(on_a_par(name, "ProxyAnchor", within=10.0, **SCORE) for name in MEAN_FIELDS),
        "half an epoch, less than the step between evaluations; published 6 to 17; MAP@R at most 10 percent below, "
        "since what learns less is at its best sooner; over twelve epochs",
        "runtime, which differs from machine to machine; SOP and In-Shop", universal=True,
        revised=f"{claims.OWN_CONTROL}; {TOO_SHORT}"),
    ClaimTest("meanfield-05", "33_meanfield_ablation_dim",
        (*(rising(f"{name};dim=32..1024", by=1.0, **SCORE) for name in MEAN_FIELDS),
         *(higher(f"{name};dim=64..256 - ProxyAnchor;dim=64..256", f"{name};dim=512..1024 - ProxyAnchor;dim=512..1024",
                  by=0.2, **SCORE) for name in MEAN_FIELDS)),
        "1 point over the range of Fig. 2; a gain larger by 0.2 points, the published gain at 512 dimensions",
        "that no step of the dimension is downwards", ingredient="embedding dimension"),
    ClaimTest("meanfield-06", "34_meanfield_ablation_beta_delta",
        (*(flat(f"MFCWMS;beta=50..90;delta={delta}", POINT, within=1.0, **SCORE) for delta in ("0.6..1", "0.6", "1")),
         rising("MFCWMS;delta=0.6..1", by=5.0, metric="best_beta", kind="rank")),
        "stable: within 1 point of the default at all levels, every corner included, about three times the published "
        "interval (0.3); the preferred beta rises by 5 over the range of delta, half a step of the published grid",
        revised=claims.ON_A_GRID, ingredient="beta and delta"),
    ClaimTest("meanfield-07", "35_meanfield_ablation_batch_size",
        (lower("MFCWMS;batch=30", "MFCWMS;batch=180", by=0.5, **SCORE),
         flat("MFCWMS;batch=150..180", "MFCWMS;batch=180", within=0.5, **SCORE)),
        "a rise of 0.5 points, a quarter of the published ones (2.1 and 2.2); saturated: within 0.5",
        "SOP; In-Shop, where the paper has a fall, also of ProxyAnchor", ingredient="batch size"),
    ClaimTest("meanfield-08", "36_meanfield_ablation_alpha",
        (higher("MFCWMS;alpha=10..20", "MFCWMS;alpha=0.01", by=0.1, **SCORE),
         higher("MFCWMS;alpha=10..20", "MFCWMS;alpha=40", by=0.3, **SCORE),
         higher("MFCWMS;alpha=20..40", "MFCWMS;alpha=0.01..1", by=1.0, metric="best_epoch")),
        "0.1 points for the slow rise (published 0.2) and 0.3 for the drop (0.7); one epoch later (published 9 to 12); "
        "beta and delta as published",
        ingredient="alpha", revised=ALSO_MOVED),
    ClaimTest("meanfield-09", "37_meanfield_ablation_regularizer",
        (*(flat(f"{name};lambda=0..100", f"{name};lambda=0", within=0.5, **SCORE) for name in MEAN_FIELDS),
         *(lower(f"{name};lambda=0;epochs=2", "0.05", by=0.01, metric="regularizer") for name in MEAN_FIELDS)),
        "no difference: within 0.5 points, above the published 0.3; zero: below 0.04 per mean field after two epochs",
        ingredient="regulariser"),
    ClaimTest("meanfield-10", "39_meanfield_vit",
        (higher("MFCWMS;alpha=20", "ProxyAnchor", by=0.1, **SCORE),
         higher("MFCWMS;alpha=20", "ProxyAnchor", by=0.5, metric="best_epoch")),
        "0.1 points: half of the smallest published gain (0.2); half an epoch later (published 2)",
        "SOP and In-Shop, where the paper has larger gains and a faster convergence", network="vit_base_patch16_224"),
    ClaimTest("meanfield-11", "38_meanfield_nca",
        tuple(higher("MFNCA", "ProxyNCA++", by=0.1, metric=name) for name in METRICS)
        + tuple(control(higher("MFNCA", f"ProxyNCA++;{SAME_RATE}", by=0.1, metric=name)) for name in METRICS),
        "0.1 points: half of the smallest published gain (0.2); also over ProxyNCA++ that starts and learns as MFNCA "
        "does, so that the second term alone differs",
        "that P@1 gains the most", protocol="mlrc", decides="all", universal=True,
        revised=f"{claims.OWN_CONTROL}; {claims.PROTOCOLS}"),
    ClaimTest("meanfield-12", "31_meanfield_mlrc",
        (higher("MFCWMS", "ArcFace", by=0.1, on=("cub", "sop"), **SCORE),
         higher("MFCWMS", "ProxyAnchor", by=0.1, on=("cub",), **SCORE),
         lower("MFCWMS", "ProxyAnchor", by=0.1, on=("cars",), **SCORE)),
        "0.1 points, since the claim is one of significance; paired by seed, and adjusted for the number of claims",
        "SOP", protocol="mlrc", decides="all", revised=claims.PROTOCOLS),
    ClaimTest("meanfield-13", "32_meanfield_conventional",
        tuple(lower(name, "ProxyAnchor", by=0.05, metric="slope_after_best", on=("cub", "cars"))
              for name in MEAN_FIELDS),
        "0.05 points of MAP@R per epoch: a point over a third of the published 60 epochs; over twelve epochs",
        "that it is otherwise on SOP and In-Shop", revised=TOO_SHORT),
    ClaimTest("meanfield-14", "37_meanfield_ablation_regularizer",
        (*(lower(f"{name};fields=solved", "0.5", by=0.1, metric="field_offset") for name in MEAN_FIELDS),
         *(control(lower(f"{name};lambda=0", "0.5", by=0.1, metric="field_offset")) for name in MEAN_FIELDS),
         *(control(lower(f"{name};lambda=0", "ProxyAnchor", by=0.05, metric="field_offset")) for name in MEAN_FIELDS)),
        "at most 0.4 of the spread of the class, where a sample is at 1; 0.05 nearer than proxies of ProxyAnchor; of "
        "fields that minimise the loss while the trained network stays",
        "the limit of small spread, which notebook 30 shows without images",
        revised=f"{claims.OWN_CONTROL}; {AT_OPTIMUM}"),
    ClaimTest("meanfield-15", "32_meanfield_conventional",
        tuple(part for mean_field, pair in (("MFCont", "Cont"), ("MFCWMS", "CWMS"))
              for part in (lower(mean_field, "1.3", by=0.0, metric="exponent", about="cost"),
                           higher(pair, "1.7", by=0.0, metric="exponent", about="cost"),
                           lower(mean_field, pair, by=0.3, metric="exponent", about="cost"))),
        "near 1: below 1.3; near 2: above 1.7; at least 0.3 between a loss and that of pairs",
        "the published hardware",
        changed="2026-11: the pair losses must be quadratic too, and sizes begin at 4,000 samples, since below what "
                "a call costs at any size was a part of the time"),
))
# fmt: on
