"""The types of the functions in a built simulator, which device.cpp defines."""

import ctypes

from streamgen.runtime.instruments import Instruments


class ChannelModel(ctypes.Structure):
    """`ChannelModel` of memory.h."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("numerator", "denominator", "latency", "outstanding", "delays", "seed")
    ]


def declared(library: ctypes.CDLL, instruments: Instruments) -> ctypes.CDLL:
    """Tell ctypes the types of the functions of device.cpp."""
    handle, u32, u64, number = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_uint64),
    )
    traced = (("waves", ctypes.c_bool, (ctypes.c_char_p, u64, u64, u64)), ("waves_end", None, ()))
    for name, result, arguments in (
        ("create", handle, ()),
        ("destroy", None, ()),
        ("error", ctypes.c_char_p, ()),
        ("cycles", u64, ()),
        ("reset", None, ()),
        ("run", ctypes.c_bool, (u64,)),
        ("write", ctypes.c_bool, (u32, u32)),
        ("read", ctypes.c_bool, (u32, ctypes.POINTER(u32))),
        ("configure", None, (u32, ctypes.POINTER(ChannelModel))),
        ("wait", ctypes.c_int, (u32, u32, u64, u64)),
        ("time", u64, ()),
        ("work", None, (ctypes.c_bool,)),
        ("clock", handle, ()),
        ("join", None, (handle,)),
        ("attach", None, (u32, u64, handle, u64)),
        ("detach", None, (u32, u64)),
        ("inject", None, (u32, u64, u32, u64, ctypes.c_bool, ctypes.c_bool)),
        ("idle", ctypes.c_bool, ()),
        ("traffic", None, (u32, number, number)),
        ("probe", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p)),
        ("expect", None, (u64, ctypes.POINTER(ctypes.c_uint8), u64, u64)),
        ("watch", None, (ctypes.c_bool,)),
        ("passed", u64, (u64,)),
        ("difference", handle, (number, number)),
        ("profile", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p, u64, u64)),
        ("profile_port", ctypes.c_bool, (ctypes.c_char_p, ctypes.c_char_p, u64, number)),
        ("profile_start", None, ()),
        ("profile_windows", number, (number, number)),
        ("profile_end", ctypes.c_bool, (number, number, number)),
        *(traced if instruments.waves else ()),
    ):
        function = getattr(library, f"device_{name}")
        function.restype = result
        function.argtypes = arguments if name == "create" else (handle, *arguments)
    return library
