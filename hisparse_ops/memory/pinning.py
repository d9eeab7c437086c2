"""Pinning memory that we mapped ourselves, piece by piece, and finding what the device calls it.

The device may know pinned memory under another address, and by another distance for each
registration; so an address is always looked up in the registration that holds it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import torch

from hisparse_ops.memory.ranges import Range

REGISTRATION_LIMIT = 256 * 2**30  # bytes of one registration that every driver accepts
_PORTABLE_AND_MAPPED = 1 | 2  # cudaHostRegisterPortable | cudaHostRegisterMapped
_SUCCESS = 0


class PinningError(RuntimeError):
    """Memory could not be registered with the device, or is not registered as one piece."""


class Registrar(Protocol):
    """The driver's calls. A call that fails raises `PinningError` and leaves no error behind."""

    def register(self, address: int, size: int) -> int:
        """Pins the bytes and returns their device address."""

    def unregister(self, address: int) -> None:
        """Waits until the device does not use the bytes any more, and unpins them."""


class Registration(NamedTuple):
    """`size` bytes at `address` on the host, at `device_address` on the device."""

    address: int
    size: int
    device_address: int


class PinnedMemory:
    """The registrations of one mapping: all of them are made here, or none."""

    def __init__(self, registrar: Registrar, base: int, ranges: Sequence[Range]) -> None:
        self._registrar = registrar
        self._registrations: list[Registration] = []
        try:
            for start, end in ranges:
                device_address = registrar.register(base + start, end - start)
                self._registrations.append(Registration(base + start, end - start, device_address))
        except BaseException:
            self.release()
            raise

    def device_address(self, address: int, size: int) -> int:
        """Where the device sees `size` bytes at `address`. Raises `PinningError` if they are not
        registered, or lie in two registrations that the device sees at different distances."""
        end = address + size
        inside = [r for r in self._registrations if r.address < end and address < r.address + r.size]
        distances = {r.device_address - r.address for r in inside}
        if sum(min(end, r.address + r.size) - max(address, r.address) for r in inside) != size:
            raise PinningError(f"{size} bytes at {address:#x} are not all registered")
        if len(distances) != 1:
            raise PinningError(f"{size} bytes at {address:#x} cross registrations that the device sees apart")
        return address + distances.pop()

    def release(self) -> None:
        """Unregisters everything once."""
        while self._registrations:
            self._registrar.unregister(self._registrations.pop().address)


class CudaRegistrar:
    """`cudaHostRegister` and its siblings, from the runtime library that torch has loaded."""

    def __init__(self) -> None:
        self._runtime = _cuda_runtime()

    def _check(self, code: int, call: str) -> None:
        if code != _SUCCESS:
            self._runtime.cudaGetLastError()  # or the next, innocent call would report it
            text = self._runtime.cudaGetErrorString(code).decode()
            raise PinningError(f"{call} failed with code {code}: {text}")

    def register(self, address: int, size: int) -> int:
        pointer = ctypes.c_void_p(address)
        code = self._runtime.cudaHostRegister(pointer, ctypes.c_size_t(size), ctypes.c_uint(_PORTABLE_AND_MAPPED))
        self._check(code, f"cudaHostRegister of {size} bytes")
        device_pointer = ctypes.c_void_p()
        code = self._runtime.cudaHostGetDevicePointer(ctypes.byref(device_pointer), pointer, ctypes.c_uint(0))
        self._check(code, f"cudaHostGetDevicePointer of {size} bytes")
        return device_pointer.value or 0

    def unregister(self, address: int) -> None:
        self._check(self._runtime.cudaDeviceSynchronize(), "cudaDeviceSynchronize")
        self._check(self._runtime.cudaHostUnregister(ctypes.c_void_p(address)), "cudaHostUnregister")


@cache
def _cuda_runtime() -> Any:
    torch.cuda.current_device()  # makes the context
    major = str(torch.version.cuda).split(".")[0]
    runtime = ctypes.CDLL(f"libcudart.so.{major}")
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    return runtime
