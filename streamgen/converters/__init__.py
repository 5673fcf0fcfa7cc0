"""Converters: the same tensor in another order of tiles."""

from streamgen.converters.choice import choose_converter
from streamgen.converters.inplace import InPlace, InPlaceParams
from streamgen.converters.layout import LayoutParams
from streamgen.converters.pingpong import PingPong, PingPongParams

__all__ = ["InPlace", "InPlaceParams", "LayoutParams", "PingPong", "PingPongParams", "choose_converter"]
