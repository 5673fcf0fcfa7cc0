"""A kernel for streamgen, described in Amaranth."""

from streamgen_example_clip.clip import Clip, ClipParams

__all__ = ["Clip", "ClipParams"]
