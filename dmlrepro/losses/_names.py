"""The short names of the losses, which papers, notebooks and tables call them by, and where each is defined.

This table is the only list of them: `dmlrepro.losses` and `dmlrepro.pml` offer what stands here. It is a file of its
own, and read by name, so that another loss changes the code of no run.
"""

NAMES = {
    "PFML": "potential_field:PotentialFieldLoss",
    "CPML": "potential_field:ContrastivePotentialLoss",
    "NivMF": "nivmf:ProbabilisticProxyLoss",  # EL-nivMF, unless `distance` says otherwise
    "ProxyAnchorNivMF": "nivmf:proxy_anchor_with_nivmf",
    "JointProxy": "nivmf:JointProxyLoss",
    "MFCont": "mean_field:MeanFieldContrastiveLoss",
    "MFCWMS": "mean_field:MeanFieldClassWiseMultiSimilarityLoss",
    "MFNCA": "mean_field:MeanFieldNCALoss",
    "Cont": "mean_field:ClassBalancedContrastiveLoss",
    "CWMS": "mean_field:ClassWiseMultiSimilarityLoss",
    "CCPContrastive": "chance_constrained:ProxyContrastiveLoss",
    "CCPTriplet": "chance_constrained:ProxyTripletLoss",
    "CCPMultiSimilarity": "chance_constrained:ProxyMultiSimilarityLoss",
    "PLM": "piecewise_linear:PiecewiseLinearManifoldLoss",
    "ContextualSimilarity": "unlabelled:ContextualSimilarityLoss",  # STML-style
    "NTXent": "unlabelled:nt_xent",
    "ProxyAnchor": "baselines:proxy_anchor",
    "ProxyNCAPP": "baselines:proxy_nca_pp",
    "NormSoftmax": "baselines:normalized_softmax",
    "SoftTriple": "baselines:soft_triple",
    "ArcFace": "baselines:arcface",
    "CosFace": "baselines:cosface",
    "Contrastive": "baselines:contrastive",
    "XBM": "baselines:cross_batch_memory",
    "Triplet": "baselines:triplet",
    "MultiSimilarity": "baselines:multi_similarity",
    "Margin": "baselines:margin",
}
