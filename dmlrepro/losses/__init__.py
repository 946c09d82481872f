"""One file per paper; import from it, e.g. `from dmlrepro.losses.potential_field import PotentialFieldLoss`.

Precision  float16 and bfloat16 embeddings, and autocast, are computed in float32 or wider; float64 stays.
Derivative Second ones are right, whatever the upstream gradient is. torch.func.grad works; torch.vmap does not, because
           what a loss computes depends on the values of a batch.
Compiler   torch.compile(loss, fullgraph=True) works but where pytorch-metric-learning chooses pairs or proxies by their
           values: `proxy_anchor`, `proxy_anchor_with_nivmf`, `nt_xent`, the pair and triplet losses of baselines.py and
           `cross_batch_memory` compile in parts. Compiled code knows shapes only and takes bad values unnoticed.
           torch.export works where fullgraph does, but not for EL-nivMF, whose random stream no graph holds.
Rates      `loss.parameter_groups(lr)` gives learning rates and clipping, see recommended.py.
"""
