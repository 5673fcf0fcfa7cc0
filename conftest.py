"""The plugins of the project's tests."""

pytest_plugins = ["streamgen.testing.pytest_plugin"]
