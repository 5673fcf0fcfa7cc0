"""The front door: compile, load, estimate, search; accelerators and language models."""
