"""What training optimises: a file for each value of `RunSpec.algorithm`, with its `algorithm_options`."""
