"""The plugins of the project's tests: the seed of the kit, and what tests take."""

pytest_plugins = ["streamgen.testing.pytest_plugin", "sim.times"]
