"""A run of a second, from which the tests of training derive theirs."""

from experiments.training.spec import RunSpec

TINY = RunSpec(
    dataset="glyphs",
    images_per_class=4,
    embedding_size=8,
    loss="baselines.proxy_nca_pp",
    steps=4,
    batch_size=16,
    lr=1e-3,
    threads=1,
)
