"""One file per paper; import from it, e.g. `from dmlrepro.losses.potential_field import PotentialFieldLoss`."""
