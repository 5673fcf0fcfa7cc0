"""The plugins of the project's tests: the seed of the kit, and what tests take."""

import os

# Workers share the processors. Threads of torch and numpy that wait for one another double the time of small
# models. The libraries read these variables when they are loaded; programs that tests start inherit them.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

os.environ["STREAMGEN_ESTIMATES"] = "off"  # a user's kept estimates are not the tests' to read or to change

pytest_plugins = ["streamgen.testing.pytest_plugin", "sim.times"]
