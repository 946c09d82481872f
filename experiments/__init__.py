"""What the notebooks call: papers, training, data sets, networks, figures, the judge. No part of dmlrepro's wheel."""
