import sys

from dmlrepro.cli import main

sys.exit(main())
