"""The memory of a simulated card: banks, and the regions in them that kernels and hosts use."""

import weakref

import numpy as np

from streamgen.artifact.packing import BEAT_BYTES
from streamgen.base.errors import DeviceError

_PAGE = 4096
_UNSET = 0xA5  # not zero, so that nothing can rely on zeros


class Region:
    """`size` bytes of a card's memory at `address`. They are free again when the object is deleted."""

    def __init__(self, address: int, size: int) -> None:
        try:
            self.content = np.full(size, _UNSET, np.uint8)
        except MemoryError as error:
            raise DeviceError(f"the host has no memory for {size} bytes") from error
        self.address, self.size = address, size

    @property
    def pointer(self) -> int:
        """Address of the content in the memory of the host."""
        return int(self.content.ctypes.data)


class CardMemory:
    """`count` banks of `size` bytes each; bank i begins at address i * size. Each master owns a bank while
    its kernel is on the card. A master may also reach the banks of others."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._regions: weakref.WeakSet[Region] = weakref.WeakSet()
        self._owners: dict[int, weakref.ref[object]] = {}

    def take(self, owner: object, wanted: int) -> int:
        """Take a bank for a master of the kernel `owner`: the bank `wanted`, or the first free bank. Raises
        DeviceError if all banks have owners."""
        free = [bank for bank in (wanted, *range(self.count)) if bank < self.count and self._free(bank)]
        if not free:
            raise DeviceError(
                f"the card has no free memory channel for the kernel: {self.count} of {self.count} are taken"
            )
        self._owners[free[0]] = weakref.ref(owner)
        return free[0]

    def leave(self, owner: object) -> None:
        """Free the banks of a kernel."""
        self._owners = {bank: ref for bank, ref in self._owners.items() if ref() not in (None, owner)}

    def allocate(self, bank: int, size: int) -> Region:
        """Allocate memory of a bank at the first free place. Raises DeviceError if the bank has no room."""
        begin, end = bank * self.size, (bank + 1) * self.size
        for region in sorted(self._regions, key=lambda region: region.address):
            if begin <= region.address < end:
                if region.address - begin >= size:
                    break
                begin = max(begin, -(-(region.address + region.size) // _PAGE) * _PAGE)
        if begin + size > end:
            raise DeviceError(f"channel {bank} is full")
        return self.place(begin, size)

    def place(self, address: int, size: int) -> Region:
        """Allocate memory at an address that the caller chose. Raises DeviceError if the memory does not lie
        in one bank, or if the address is not a multiple of a beat."""
        if address % BEAT_BYTES:
            raise DeviceError(f"buffer address {address:#x} is not a multiple of {BEAT_BYTES} bytes")
        bank, offset = divmod(address, self.size)
        if not 0 <= bank < self.count or offset + size > self.size:
            raise DeviceError(f"no memory channel has {size} bytes at {address:#x}")
        region = Region(address, size)
        self._regions.add(region)
        return region

    def _free(self, bank: int) -> bool:
        return bank not in self._owners or self._owners[bank]() is None
