"""Settings for every test: the same examples on every run in CI, no windows from matplotlib."""

import os

from hypothesis import settings

os.environ["MPLBACKEND"] = "Agg"  # by environment, so that subprocesses have it too

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
