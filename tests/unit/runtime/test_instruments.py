"""The pins that a simulator keeps for probes and profiles."""

import pytest

from streamgen.base.errors import StreamgenError
from streamgen.runtime.instruments import Instruments

VERILOG = """
module queue_a(i__valid);
endmodule

module top(ap_clk);
  wire counters__enable;
  queue_a fifo_0 (
  );
  queue_a fifo_1 (
  );
  queue_b fifo_2 (
  );
endmodule
"""


FIFO_2 = ("fifo_2", "fifo_2")


def _pins(instruments: Instruments) -> list[tuple[str, str]]:
    rules = [rule.split('"') for rule in instruments.rules(VERILOG, "top")]
    assert all(rule[0] == "public_flat_rd -module " for rule in rules)
    return [(rule[1], rule[3]) for rule in rules]


def test_pins() -> None:
    handshake = ["i__valid", "i__ready", "o__valid", "o__ready"]
    assert _pins(Instruments()) == []
    assert _pins(Instruments(streams=(FIFO_2,))) == [
        ("queue_b", f"{side}__{pin}") for side in "io" for pin in ("valid", "ready", "payload")
    ]
    apart = Instruments(streams=(("fifo_0", "fifo_2"),))
    assert [pin for pin in _pins(apart) if pin[1][0] == "i"] == [
        ("queue_a", f"i__{pin}") for pin in ("valid", "ready", "payload")
    ]
    assert _pins(Instruments(profile=(("fifo_0", "fifo_0"), ("fifo_1", "fifo_1"), FIFO_2))) == [
        *(("queue_a", pin) for pin in handshake),
        *(("queue_b", pin) for pin in handshake),
        ("top", "counters__enable"),
    ]
    assert ("queue_b", "o__payload") in _pins(Instruments(streams=(FIFO_2,), profile=(FIFO_2,)))


@pytest.mark.parametrize(
    ("instruments", "verilog", "message"),
    [
        (Instruments(streams=(("fifo_2", "fifo_3"),)), VERILOG, "no instance 'fifo_3' to probe"),
        (Instruments(profile=(("fifo_3", "fifo_2"),)), VERILOG, "no instance 'fifo_3' to probe"),
        (
            Instruments(profile=(("fifo_0", "fifo_1"),)),
            VERILOG.replace("enable", "on"),
            "no wire 'counters__enable' to profile by",
        ),
    ],
)
def test_what_is_missing(instruments: Instruments, verilog: str, message: str) -> None:
    with pytest.raises(StreamgenError) as raised:
        instruments.rules(verilog, "top")
    assert str(raised.value) == f"the Verilog of 'top' has {message}"
