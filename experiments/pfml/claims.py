"""The fifteen claims of "Potential Field Based Deep Metric Learning" and the test of each, as data.

Metrics, beside those of dmlrepro.metrics (recalls and precisions in percent):
  W2                       mean distance of proxies to the training embeddings matched with them, on the unit sphere
  W2 / intra_class_distance  the same over the mean distance of two embeddings of a class: proxies that lie near only
                           because everything does are not aligned
  W2/delta                 W2 in the numerical study of pfml Prop. 1 and Cor. 1, over delta; a row per point set
                           (`seed`), where delta < d_min / (2 (1 + 1/n)) and the proxies start near distinct samples
  seconds_ratio            time of a training step over that of ProxyNCA++ in the same process; `seed` = repetition
  loss_seconds_ratio       the same of the loss's part of a step alone, which no network dominates
  loss_exponent            the power with which PFML's part grows, from M = 5 or from the number of classes before

The methods and levels compared must have gained over the network that their training began with.
"""

from experiments.analysis import claims
from experiments.analysis.claims import ClaimTest, control, drop, falling, flat, higher, lower, on_a_par

# Five settings of PFML's clipping were tried on validation classes and seven of CPML's, none of any other method.
TUNED = "2026-11: only where all methods compared had equally many trials of the same search, at least 12"
NO_DECAY = "a search on right labels had left almost no decay, alpha = 0.14"
DRAWN = "the paper draws proxies from a normal distribution; only those of norm 1 were compared"
NOISE = "label_noise=0.2"
UNDER_NOISE = ("ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet")
RELATIVE_W2 = "W2 / intra_class_distance"
EPOCH, ALONE = "a training step", "the loss alone"  # what may take barely longer


def _time(subject: str, constant: str, metric: str, interpretation: str) -> claims.Part:
    return lower(subject, constant, by=0.0, metric=metric, about="cost", interpretation=interpretation)


# fmt: off
TESTS = claims.planned((
    ClaimTest("pfml-01", "10_pfml_retrieval",
        (higher("PFML", "CPML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: the spread over seeds these papers report; less would not survive another implementation",
        "the other methods of Table 1, SOP, DINO and ViT backbones",
        changed=TUNED, universal=True),
    ClaimTest("pfml-02", "10_pfml_retrieval",
        (higher("PFML", "CPML", by=1.0),),
        "1 point: under a third of the smallest published gain (3.5)",
        "SOP; CPML's repulsion, which the paper does not define (here the contrastive hinge)",
        changed=TUNED),
    ClaimTest("pfml-03", "10_pfml_retrieval",
        (higher("PFML", "ProxyAnchor", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: a third of the smallest published gain (1.5)",
        "HIST, ProxyGML, SOP",
        changed=TUNED),
    ClaimTest("pfml-04", "11_pfml_label_noise",
        (higher(f"PFML;{NOISE}", f"ProxyAnchor;{NOISE}", by=1.0),),
        "1 point: a sixth of the smaller published gain (6.0); PFML at the published alpha = 3, the rest tuned",
        changed=TUNED, revised=NO_DECAY),
    ClaimTest("pfml-05", "11_pfml_label_noise",
        (lower(drop("PFML", NOISE), *(drop(name, NOISE) for name in UNDER_NOISE)),
         on_a_par("PFML", *UNDER_NOISE, within=10.0)),
        "0.5 points of drop: under a quarter of the published margin over ProxyAnchor (2.3); with clean labels at most "
        "10 percent below the other method, so that it had as much to lose; PFML at the published alpha = 3",
        "HIST",
        changed=f"{TUNED}; needs R@1 on a par with clean labels, since a fall from 30 to 28 passed against 72 to 66",
        universal=True, revised=NO_DECAY),
    ClaimTest("pfml-06", "12_pfml_proxy_alignment",
        (lower("PFML", "SoftTriple", by=10.0, metric="W2", relative=True),
         lower("PFML;proxies=as drawn", "SoftTriple", by=10.0, metric="W2", relative=True),
         control(lower("PFML", "SoftTriple", by=10.0, metric=RELATIVE_W2, relative=True))),
        "10 percent of W2: a third of the published reduction (33), with proxies that start at norm 1 and with proxies "
        "as drawn; the same relative to the spread of the classes",
        changed=f"{TUNED}; W2 relative to the distance within a class as well, since a collapsed embedding passed",
        revised=f"{claims.OWN_CONTROL}; {DRAWN}"),
    ClaimTest("pfml-07", "12_pfml_proxy_alignment",
        (claims.at_most("PFML;M=1..10", "1", "W2/delta", tolerance=1e-3),
         claims.at_least("CPML;M=1..10", "1", "W2/delta"),
         lower("PFML", "CPML", "ProxyNCA++", "ProxyAnchor", by=10.0, metric="W2", relative=True),
         control(lower("PFML", "CPML", "ProxyNCA++", "ProxyAnchor", by=10.0, metric=RELATIVE_W2, relative=True))),
        "the bounds are exact, but for 0.1 percent of the optimiser; 10 percent of W2: a quarter of the published 38; "
        "the same relative to the spread of the classes",
        changed=f"{TUNED}; W2 relative to the distance within a class as well, since a collapsed embedding passed; the "
                "bounds need 1 and 10 proxies, where any number between 1 and 1000 was enough",
        revised=claims.OWN_CONTROL),
    ClaimTest("pfml-08", "13_pfml_ablation_proxies",
        (higher("PFML;M=1..30", "PFML;M=0"),),
        "0.5 points, as for pfml-01; all M > 0 count alike, so that none is chosen by its result; at the published "
        "alpha = 3, the rest tuned",
        changed="2026-11: M = 1 and 30 must be among those measured, since M = 0 and 15 alone passed",
        ingredient="proxies", revised=NO_DECAY),
    ClaimTest("pfml-09", "13_pfml_ablation_proxies",
        (flat("PFML;M=5..30", "PFML;M=15", within=1.5),
         lower("PFML;M=1..2", "PFML;M=15", by=0.2)),
        "stable: within 1.5 points, three times the spread over seeds; a slight fall: 0.2 points; at the published "
        "alpha = 3, the rest tuned",
        changed="2026-11: M = 1 and 2 must both be measured; the reference is M = 15, "
                "the paper's own, where it was whatever lay between 10 and 20, which at every profile was M = 15",
        ingredient="number of proxies M", revised=NO_DECAY),
    ClaimTest("pfml-10", "14_pfml_ablation_delta",
        (flat("PFML;delta=0.1..0.35", "PFML;delta=0.2", within=1.5),),
        "relatively stable: within 1.5 points of the default, three times the spread over seeds; at the published "
        "alpha = 3, the rest tuned",
        ingredient="radius delta", revised=NO_DECAY),
    ClaimTest("pfml-11", "15_pfml_ablation_alpha",
        (higher("PFML;alpha=1..6", "PFML;alpha=0", by=1.0),
         higher("PFML;alpha=3..6", "PFML;alpha=1..2")),
        "1 point for the published 5 to 6 of alpha = 0; 0.5 between strong and mild decay",
        "the authors' own alpha = 0, which they do not define (here the logarithmic limit)",
        changed="2026-11: alpha = 1, 2, 3 and 6 must be among those measured, since 0, 1 and 3 passed",
        ingredient="decay exponent alpha"),
    ClaimTest("pfml-12", "16_pfml_ablation_repulsion_radius",
        (falling("PFML;delta_rep=0.2..0.45", by=1.0),),
        "1 point over the published range: a seventh of the smaller published fall (6.8); at the published alpha = 3, "
        "the rest tuned",
        ingredient="radius of repulsion", revised=NO_DECAY),
    ClaimTest("pfml-13", "17_pfml_cost",
        (_time("PFML;M=30", "1.1", "seconds_ratio", EPOCH),
         _time("PFML;M=30 - PFML;M=5", "0.1", "seconds_ratio", EPOCH),
         control(_time("PFML;M=30", "1.1", "loss_seconds_ratio", ALONE)),
         control(_time("PFML;C=1000;M=2", "1.1", "loss_seconds_ratio", ALONE)),
         control(_time("PFML;M=30", "1.1", "loss_exponent", ALONE)),
         control(_time("PFML;C=4000;M=2", "1.1", "loss_exponent", ALONE))),
        "barely: less than 10 percent, over twice the published growth (4.2 over ProxyNCA, 3.5 from M = 5), of a step, "
        "which is what the paper timed; most of it is the network's, all the more on a CPU, so that hardly any loss "
        "could fail. Of the loss alone the same 10 percent are asked, and a growth that is linear, as Sec. 5 concedes "
        "it for classes, but for a tenth of a power",
        "the published hardware, on which the network takes a smaller share of a step", network="resnet50",
        changed="2026-11: ResNet-50 alone, since a ratio of times on a smaller network says nothing about it; the loss "
                "alone and its growth beside the step", revised=claims.OWN_CONTROL),
    ClaimTest("pfml-14", "10_pfml_retrieval",
        (higher("PFML;dim=64",
                 *(f"{name};dim=64" for name in ("ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"))),),
        "0.5 points: a third of the smallest published gain (1.4)",
        "HIST, ProxyGML, SOP",
        changed=f"{TUNED}; at 64 dimensions, as the claim says, since 16 alone passed", universal=True),
    ClaimTest("pfml-15", "10_pfml_retrieval",
        tuple(higher("PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive", metric=name)
              for name in ("P@1", "RP", "MAP@R")),
        "0.5 points: half of the smallest published gain (1.1)",
        "HIST and the other baselines of Tables 6 and 7", protocol="mlrc", decides="separated",
        changed=TUNED),
))
# fmt: on
