"""Streams: the signature that an ITensor gives, and the plumbing that every design needs."""

from streamgen.stream.countdown import Countdown, CountdownParams
from streamgen.stream.fork import Fanout, FanoutParams
from streamgen.stream.gather import Gather, GatherParams
from streamgen.stream.join import Join, JoinParams
from streamgen.stream.register_slice import RegisterSlice, RegisterSliceParams, add_skid, skid_resources
from streamgen.stream.scatter import Scatter, ScatterParams
from streamgen.stream.signature import descriptor_layout, descriptor_signature, signature
from streamgen.stream.switch import Router, RouterParams, Selector, SelectorParams

__all__ = [
    "Countdown",
    "CountdownParams",
    "Fanout",
    "FanoutParams",
    "Gather",
    "GatherParams",
    "Join",
    "JoinParams",
    "RegisterSlice",
    "RegisterSliceParams",
    "Router",
    "RouterParams",
    "Scatter",
    "ScatterParams",
    "Selector",
    "SelectorParams",
    "add_skid",
    "descriptor_layout",
    "descriptor_signature",
    "signature",
    "skid_resources",
]
