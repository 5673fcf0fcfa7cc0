"""Streams: the signature that an ITensor gives, and the plumbing that every design needs."""

from streamgen.gateware.stream.countdown import Countdown, CountdownParams, add_rows
from streamgen.gateware.stream.fork import Fanout, FanoutParams
from streamgen.gateware.stream.gather import Gather, GatherParams
from streamgen.gateware.stream.join import Join, JoinParams
from streamgen.gateware.stream.register_slice import (
    RegisterSlice,
    RegisterSliceParams,
    add_skid,
    skid_resources,
)
from streamgen.gateware.stream.scatter import Scatter, ScatterParams
from streamgen.gateware.stream.signature import descriptor_layout, descriptor_signature, signature
from streamgen.gateware.stream.switch import Router, RouterParams, Selector, SelectorParams

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
    "add_rows",
    "add_skid",
    "descriptor_layout",
    "descriptor_signature",
    "signature",
    "skid_resources",
]
