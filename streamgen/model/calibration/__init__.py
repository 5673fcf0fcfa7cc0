"""Calibration of 4-bit weights with texts: which matmuls have 4 bits, and how their weights are rounded.

    numbers = within_bits(graph, texts, config.numbers(True), bits=5.0)      # 8 bits where they save most
    small = calibrated(graph, texts, numbers, folder="work")
    model = streamgen.compile(small, None, config)

texts: inputs of passes, `[{"ids": ids} for ids in windows]` for a language model.
"""

from streamgen.model.calibration.budget import within_bits
from streamgen.model.calibration.rounding import Texts, calibrated

__all__ = ["Texts", "calibrated", "within_bits"]
