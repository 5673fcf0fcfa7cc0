"""The memory of a simulated card: banks, and the regions of them that kernels and hosts have."""

import weakref

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.errors import DeviceError

_PAGE = 4096
_UNSET = 0xA5  # nobody may rely on zeros


class Region:
    """`size` bytes of a card's memory from `address` on; it is given back when nobody has it any more."""

    def __init__(self, address: int, size: int) -> None:
        try:
            self.content = np.full(size, _UNSET, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"{size} bytes: the host's memory is full") from error
        self.address, self.size = address, size

    @property
    def pointer(self) -> int:
        """Where the host has it."""
        return int(self.content.ctypes.data)


class CardMemory:
    """`count` banks of `size` bytes each; bank i begins at i * size. Each master of a kernel has one for
    itself as long as the kernel is on the card; it reaches others, too."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._regions: weakref.WeakSet[Region] = weakref.WeakSet()
        self._owners: dict[int, weakref.ref[object]] = {}

    def take(self, owner: object, wanted: int) -> int:
        """A bank for a master of `owner`: the one that it wants, or the first that is free. DeviceError when
        all have owners."""
        free = [bank for bank in (wanted, *range(self.count)) if bank < self.count and self._free(bank)]
        if not free:
            raise DeviceError(
                f"the card has {self.count} memory channels, and each has a master: no room for the kernel"
            )
        self._owners[free[0]] = weakref.ref(owner)
        return free[0]

    def leave(self, owner: object) -> None:
        """The kernel is no more on the card."""
        self._owners = {bank: ref for bank, ref in self._owners.items() if ref() not in (None, owner)}

    def allocate(self, bank: int, size: int) -> Region:
        """Memory of a bank, wherever it has room. DeviceError when it has none."""
        begin, end = bank * self.size, (bank + 1) * self.size
        for region in sorted(self._regions, key=lambda one: one.address):
            if begin <= region.address < end:
                if region.address - begin >= size:
                    break
                begin = max(begin, -(-(region.address + region.size) // _PAGE) * _PAGE)
        if begin + size > end:
            raise DeviceError(f"channel {bank} is full")
        return self.place(begin, size)

    def place(self, address: int, size: int) -> Region:
        """Memory at an address, for who allocates by himself. DeviceError where no bank has it, and for a
        beat that begins before it."""
        if address % BEAT_BYTES:
            raise DeviceError(f"a buffer at {address:#x} is unaligned; beats have {BEAT_BYTES} bytes")
        bank, offset = divmod(address, self.size)
        if not 0 <= bank < self.count or offset + size > self.size:
            raise DeviceError(f"no channel holds {size} bytes at {address:#x}")
        region = Region(address, size)
        self._regions.add(region)
        return region

    def _free(self, bank: int) -> bool:
        return bank not in self._owners or self._owners[bank]() is None
