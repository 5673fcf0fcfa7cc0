"""Check the stream laws cycle by cycle. This is plain Python, so the benches of all simulators can use it.

The laws (see `gateware.stream.signature`): once `valid` is high, it stays high, and the payload stays the
same, until the token has moved. The third law, that `valid` does not wait for `ready`, is tested by the
benches. Their sinks sometimes keep `ready` low until `valid` is high. A stream that breaks the law then
stops, and the watchdog names it.
"""


class StreamLawError(AssertionError):
    """A stream broke a law. The message names the stream, the cycle and the index of the token."""


class StreamMonitor:
    """Monitors a stream. Call `observe` once in each cycle with the settled values.

    After each call, `tokens` is the number of tokens that have moved, and `valid` and `ready` are the last
    values.
    """

    __slots__ = ("_held", "_payload", "_remark", "name", "ready", "tokens", "valid")

    def __init__(self, name: str, remark: str = "") -> None:
        self.name = name
        self._remark = f" ({remark})" if remark else ""
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a reset of the design does."""
        self.valid = self.ready = self.tokens = 0
        self._held = False
        self._payload = 0

    def observe(self, cycle: int, valid: int, ready: int, payload: int) -> bool:
        """Check a cycle, and return whether a token moves in it. Raises StreamLawError for a broken law."""
        if self._held:
            if not valid:
                raise StreamLawError(
                    f"stream {self.name!r}, cycle {cycle}, token {self.tokens}: "
                    f"valid fell before the token was taken{self._remark}"
                )
            if payload != self._payload:
                raise StreamLawError(
                    f"stream {self.name!r}, cycle {cycle}, token {self.tokens}: payload changed from "
                    f"{self._payload:#x} to {payload:#x} before the token was taken{self._remark}"
                )
        self.valid = valid
        self.ready = ready
        if valid and ready:
            self.tokens += 1
            self._held = False
            return True
        if valid:
            self._held = True
            self._payload = payload
        return False
