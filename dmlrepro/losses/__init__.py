"""One file per paper. Import the loss you need, e.g. `from dmlrepro.losses.potential_field import PotentialFieldLoss`."""
