"""Converters: the same tensor in another order."""

from streamgen.converters.pingpong import PingPong, PingPongParams

__all__ = ["PingPong", "PingPongParams"]
