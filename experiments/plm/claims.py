"""The fifteen claims of "Piecewise-Linear Manifolds for Deep Metric Learning" and the test of each, as data.

Metrics, beside those of dmlrepro.metrics (recalls and precisions in percent):
  label_purity    share of the majority label of a group, averaged over the points that own one; a fraction
  gt_correlation  Pearson correlation of a similarity with "same class", over all pairs; a fraction
  nearest_distance, mean_distance, nearest_asked, mean_asked    see `retrieval.retrieval_table`
"""

from experiments.analysis.claims import OWN_CONTROL, ClaimTest, control, falling, flat, higher, lower, planned

# fmt: off
TESTS = planned((
    ClaimTest("plm-01", "50_plm_retrieval",
        (higher("PLM", "STML-style"),),
        "0.5 points: under half of the smallest published gain (1.3)",
        "STML with its second embedding layer and self-distillation; SOP"),
    ClaimTest("plm-02", "50_plm_retrieval",
        (higher("PLM", "Hierarchical"),),
        "0.5 points: under half of the smallest published gain (1.3)",
        "UHML's hyperbolic space; SOP"),
    ClaimTest("plm-03", "51_plm_supervision_quality",
        (higher("PLM", "K-Means", "Hierarchical", by=0.02, metric="label_purity", about="features"),
         control(higher("PLM", "nearest", by=0.02, metric="label_purity", about="features"))),
        "0.02: a sixth of the smallest published gap (0.12); small groups are pure by being small, so that as many "
        "nearest neighbours must be less pure as well",
        "SOP; groups that no seed draws have one value, which five seeds repeat: how other images would change it",
        revised=OWN_CONTROL),
    ClaimTest("plm-04", "51_plm_supervision_quality",
        (higher("PLM", "K-Means", "Hierarchical", "Random Walk", by=0.02, metric="gt_correlation", about="features"),
         control(higher("PLM", "cosine", by=0.02, metric="gt_correlation", about="features"))),
        "0.02: under a quarter of the smallest published gap (0.09); pseudo-labels are binary, so that the cosine of "
        "the features, continuous as well, must correlate less",
        "SOP; what no seed draws has one value, which five seeds repeat: how other images would change it",
        revised=OWN_CONTROL),
    ClaimTest("plm-05", "52_plm_ablation_proxies",
        (flat("PLM;N_rho=50..500", "PLM;N_rho=100", within=1.5),
         lower("PLM;N_rho=0..10", "PLM;N_rho=100", may_fail=True)),
        "stable: within 1.5 points; a decrease: 0.5 points, above the reported spread (0.3)",
        ingredient="number of proxies"),
    ClaimTest("plm-06", "52_plm_ablation_proxies",
        (higher("PLM;N_rho=100", "PLM;N_rho=0"),),
        "0.5 points, above the reported spread (0.3)", ingredient="proxies"),
    ClaimTest("plm-07", "53_plm_ablation_dimension",
        (flat("PLM;m=2..4", "PLM;m=3", within=1.5),
         falling("PLM;m=3..7", by=0.5)),
        "stable: within 1.5 points; a decrease: 0.5 points over the range", ingredient="dimension of the pieces"),
    ClaimTest("plm-08", "54_plm_ablation_decay",
        (flat("PLM;N_alpha=3..6;N_beta=0.5", "PLM;N_alpha=4;N_beta=0.5", within=1.5),),
        "stable: within 1.5 points, at least six times as fast across as along",
        ingredient="decay of the similarity"),
    ClaimTest("plm-09", "54_plm_ablation_decay",
        (lower("PLM;N_alpha=1;N_beta=1", "PLM;N_alpha=4;N_beta=0.5", by=3.0, may_fail=True),
         lower("PLM;N_alpha=1.5;N_beta=1.5", "PLM;N_alpha=4;N_beta=0.5", by=3.0, may_fail=True)),
        "3 points: under a third of the published fall (about 10)", ingredient="decay of the similarity"),
    ClaimTest("plm-10", "54_plm_ablation_decay",
        (lower("PLM;N_alpha=4;N_beta=0", "PLM;N_alpha=4;N_beta=0.5", may_fail=True),),
        "0.5 points, above the reported spread (0.3)", ingredient="decay of the similarity"),
    ClaimTest("plm-11", "55_plm_ablation_delta",
        (flat("PLM;delta=0.2..2", "PLM;delta=2", within=1.5),),
        "relatively stable: within 1.5 points of the default, five times the spread over seeds",
        ingredient="distance delta"),
    ClaimTest("plm-12", "56_plm_ablation_similarity",
        (lower("PLM;neighbours=all", "PLM", by=1.0, may_fail=True),),
        "1 point: under a third of the published drop (3.3)", ingredient="selection of neighbours"),
    ClaimTest("plm-13", "56_plm_ablation_similarity",
        (lower("PLM;similarity=binary", "PLM", by=2.0, may_fail=True),),
        "2 points: under a third of the published drop (7.5)",
        "the binary similarity of proxies, which the paper does not define (our reading)",
        ingredient="continuous similarity"),
    ClaimTest("plm-14", "56_plm_ablation_similarity",
        (lower("PLM;neighbours=all;similarity=binary", "PLM", by=2.0, may_fail=True),
         lower("PLM;neighbours=all;similarity=binary", "PLM;neighbours=all", "PLM;similarity=binary",
               may_fail=True)),
        "2 points: under a quarter of the published drop (8.6), and 0.5 below either change alone, under half of the "
        "published distance to the nearer (1.1)",
        "that the drop is less than the sum of the two drops",
        ingredient="selection of neighbours; continuous similarity"),
    ClaimTest("plm-15", "56_plm_ablation_similarity",
        (lower("PLM;batches=random", "PLM", may_fail=True),
         lower("PLM;momentum=0", "PLM", may_fail=True)),
        "0.5 points, above the reported spread (0.3); the paper gives no figures",
        "that training without the momentum encoder is unstable, beyond what it scores",
        ingredient="batches of neighbours; momentum encoder"),
))
# fmt: on
