"""The fifteen claims of "Potential Field Based Deep Metric Learning" and the test of each, as data.

Metrics, beside those of dmlrepro.metrics (recalls and precisions in percent):
  W2                       mean distance of proxies to the training embeddings matched with them, on the unit sphere
  W2/delta                 the same in the numerical study of pfml Prop. 1 and Cor. 1, over delta; a row per point set
                           (`seed`), where delta < d_min / (2 (1 + 1/n)) and the proxies start near distinct samples
  seconds_ratio            time of a training step over that of ProxyNCA++ in the same process; `seed` = repetition
"""

from dmlrepro.evidence.claims import ClaimTest, at_least, at_most, cheaper, drop, falling, flat, higher, lower

NOISE = "label_noise=0.2"

# fmt: off
_TESTS = (
    ClaimTest("pfml-01", "10_pfml_retrieval",
        (higher("PFML", "CPML", "ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: the spread over seeds these papers report; less would not survive another implementation",
        "the other methods of Table 1, SOP, DINO and ViT backbones"),
    ClaimTest("pfml-02", "10_pfml_retrieval",
        (higher("PFML", "CPML", by=1.0),),
        "1 point: under a third of the smallest published gain (3.5)",
        "SOP; CPML's repulsion, which the paper does not define (here the contrastive hinge)"),
    ClaimTest("pfml-03", "10_pfml_retrieval",
        (higher("PFML", "ProxyAnchor", "SoftTriple", "MultiSimilarity"),),
        "0.5 points: a third of the smallest published gain (1.5)",
        "HIST, ProxyGML, SOP"),
    ClaimTest("pfml-04", "11_pfml_label_noise",
        (higher(f"PFML;{NOISE}", f"ProxyAnchor;{NOISE}", by=1.0),),
        "1 point: a sixth of the smaller published gain (6.0)"),
    ClaimTest("pfml-05", "11_pfml_label_noise",
        (lower(drop("PFML", NOISE),
                *(drop(name, NOISE) for name in ("ProxyAnchor", "ProxyNCA++", "MultiSimilarity", "Triplet"))),),
        "0.5 points of drop: under a quarter of the published margin over ProxyAnchor (2.3)",
        "HIST"),
    ClaimTest("pfml-06", "12_pfml_proxy_alignment",
        (lower("PFML", "SoftTriple", by=10.0, metric="W2", relative=True),),
        "10 percent of W2: a third of the published reduction (33)"),
    ClaimTest("pfml-07", "12_pfml_proxy_alignment",
        (at_most("PFML;M=1..1000", "1", "W2/delta", tolerance=1e-3),
         at_least("CPML;M=1..1000", "1", "W2/delta"),
         lower("PFML", "CPML", "ProxyNCA++", "ProxyAnchor", by=10.0, metric="W2", relative=True)),
        "the bounds are exact, but for 0.1 percent of the optimiser; 10 percent of W2: a quarter of the published 38"),
    ClaimTest("pfml-08", "13_pfml_ablation_proxies",
        (higher("PFML;M=1..30", "PFML;M=0"),),
        "0.5 points, as for pfml-01; all M > 0 count alike, so that none is chosen by its result"),
    ClaimTest("pfml-09", "13_pfml_ablation_proxies",
        (flat("PFML;M=5..30", "PFML;M=10..20", within=1.5),
         lower("PFML;M=1..2", "PFML;M=10..20", by=0.2)),
        "stable: within 1.5 points, three times the spread over seeds; a slight fall: 0.2 points"),
    ClaimTest("pfml-10", "14_pfml_ablation_delta",
        (flat("PFML;delta=0.1..0.35", "PFML;delta=0.2", within=1.5),),
        "relatively stable: within 1.5 points of the default, three times the spread over seeds"),
    ClaimTest("pfml-11", "15_pfml_ablation_alpha",
        (higher("PFML;alpha=1..6", "PFML;alpha=0", by=1.0),
         higher("PFML;alpha=3..6", "PFML;alpha=1..2")),
        "1 point for the published 5 to 6 of alpha = 0; 0.5 between strong and mild decay",
        "the authors' own alpha = 0, which they do not define (here the logarithmic limit)"),
    ClaimTest("pfml-12", "16_pfml_ablation_repulsion_radius",
        (falling("PFML;delta_rep=0.2..0.45", by=1.0),),
        "1 point over the published range: a seventh of the smaller published fall (6.8)"),
    ClaimTest("pfml-13", "17_pfml_cost",
        (cheaper("PFML;M=30", "1.1"),
         cheaper("PFML;M=30 - PFML;M=5", "0.1")),
        "barely: less than 10 percent, over twice the published growth (4.2 over ProxyNCA, 3.5 from M = 5)",
        "the published hardware"),
    ClaimTest("pfml-14", "10_pfml_retrieval",
        (higher("PFML;dim=16..64",
                 *(f"{name};dim=16..64" for name in ("ProxyAnchor", "ProxyNCA++", "SoftTriple", "MultiSimilarity"))),),
        "0.5 points: a third of the smallest published gain (1.4)",
        "HIST, ProxyGML, SOP"),
    ClaimTest("pfml-15", "10_pfml_retrieval",
        tuple(higher("PFML", "MultiSimilarity", "ProxyAnchor", "Contrastive", metric=name)
              for name in ("P@1", "RP", "MAP@R")),
        "0.5 points: half of the smallest published gain (1.1)",
        "HIST and the other baselines of Tables 6 and 7", protocol="mlrc"),
)
# fmt: on
TESTS: dict[str, ClaimTest] = {test.claim_id: test for test in _TESTS}
