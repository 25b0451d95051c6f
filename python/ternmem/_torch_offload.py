"""Tensors of PyTorch in unified buffers: saved tensors of autograd, and parameters."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from . import _core, errors
from .unified_buffer import UnifiedBuffer


class _Stored:
    """The elements of a tensor in a UnifiedBuffer."""

    def __init__(self, tensor: Any, device: _core.Device | None, tag: str) -> None:
        # The elements are stored in the order of their strides, so that the new tensor has the strides of the old one.
        order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
        packed = tensor.detach().permute(order)
        self.is_dense = bool(packed.is_contiguous())
        if not self.is_dense:
            packed = packed.contiguous()
        self.order = order
        self.shape = packed.shape
        self.dtype = tensor.dtype
        self.place = tensor.device
        self.buffer = UnifiedBuffer(packed.numel() * packed.element_size(), "uint8", device=_device_for(tensor, device), tag=tag)
        if not packed.is_cuda:
            with self.buffer.discard_host() as array:
                array[:] = _bytes_of(packed)
            return
        stream = _borrowed_stream(tensor)
        with self.buffer.discard_device(stream) as array:
            stream.copy_bytes(array.ptr, packed.data_ptr(), array.nbytes)

    def load(self) -> Any:
        """Return a new tensor with the elements."""
        packed = torch.empty(self.shape, dtype=self.dtype, device=self.place)
        if packed.is_cuda:
            stream = _borrowed_stream(packed)
            with self.buffer.read_device(stream) as lent:
                stream.copy_bytes(packed.data_ptr(), lent.ptr, lent.nbytes)
        else:
            with self.buffer.read_host() as lent:
                _bytes_of(packed)[:] = lent
        return packed.permute([self.order.index(axis) for axis in range(len(self.order))])


def _device_of(tensor: Any) -> _core.Device:
    return _core.open_device(f"cuda:{tensor.device.index}") if tensor.is_cuda else _core.current_device()


def _device_for(tensor: Any, wanted: _core.Device | None) -> _core.Device:
    if wanted is None:
        return _device_of(tensor)
    if tensor.is_cuda and wanted.spec.partition("?")[0] != f"cuda:{tensor.device.index}":
        raise errors.DeviceMismatchError(f"a tensor on '{tensor.device}' cannot have its unified buffer on '{wanted.spec}'. Leave the "
                                         "device out to use that of the tensor.")
    return wanted


def _borrowed_stream(tensor: Any) -> _core.Stream:
    return _core.Stream.borrow(torch.cuda.current_stream(tensor.device).cuda_stream, _device_of(tensor))


def _bytes_of(tensor: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a contiguous CPU tensor, as an array that shares its memory."""
    array: np.ndarray[Any, np.dtype[np.uint8]] = tensor.reshape(-1).view(torch.uint8).numpy()
    return array


def _is_parameter(tensor: Any) -> bool:
    root = tensor if tensor._base is None else tensor._base
    return bool(root.is_leaf and root.requires_grad)


@contextlib.contextmanager
def offload_saved_tensors(min_bytes: int = 1 << 20, device: Any = None) -> Iterator[None]:
    """Keep the tensors that autograd saves for ``backward()`` in unified buffers.

    A copy of each tensor goes into a :class:`~ternmem.UnifiedBuffer`, in the order of PyTorch's current stream. When the
    budget of the device is at its limit, Tern moves the copies to the host. ``backward()`` gets tensors with equal bytes and
    strides. Parameters and tensors with gaps between their elements stay where they are.

    Parameters
    ----------
    min_bytes : int
        Smaller tensors stay where they are.
    device : Device or str, optional
        The device of the unified buffers. By default the device of the tensor, and the current device for CPU tensors.
    """
    opened = _core.open_device(device) if isinstance(device, str) else device

    def pack(tensor: Any) -> Any:
        bytes = tensor.numel() * tensor.element_size()
        if bytes == 0 or bytes < min_bytes or tensor.layout != torch.strided or _is_parameter(tensor):
            return tensor
        if tensor.device.type not in ("cpu", "cuda") or type(tensor) is not torch.Tensor or not _has_no_gaps(tensor):
            return tensor
        return _Stored(tensor, opened, "saved tensor")

    def unpack(packed: Any) -> Any:
        return packed.load() if isinstance(packed, _Stored) else packed

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _has_no_gaps(tensor: Any) -> bool:
    order = sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
    return bool(tensor.permute(order).is_contiguous())


class OffloadedParameters:
    """The parameters of a module in unified buffers. :func:`offload_parameters` makes it.

    Use it as a context manager, or call :meth:`restore`: the module then has its parameters again.
    """

    def __init__(self, module: Any, min_bytes: int, device: _core.Device | None) -> None:
        self._stored: dict[Any, _Stored] = {}
        self._users: dict[Any, int] = {}
        self._lock = threading.RLock()
        self._hooks: list[Any] = []
        for part in module.modules():
            own = [one for one in part.parameters(recurse=False)
                   if one in self._stored  # another module has the parameter too
                   or (one.numel() * one.element_size() >= min_bytes and one.device.type in ("cpu", "cuda"))]
            if not own:
                continue
            for one in own:
                if one not in self._stored:
                    self._stored[one] = _Stored(one, device, "parameter")
                    self._users[one] = 0
                    one.data = torch.empty(0, dtype=one.dtype, device=one.device)
            self._hooks.append(part.register_forward_pre_hook(functools.partial(self._before, own)))
            self._hooks.append(part.register_forward_hook(functools.partial(self._after, own), always_call=True))

    @property
    def nbytes(self) -> int:
        """The number of bytes of the offloaded parameters."""
        return sum(one.buffer.nbytes for one in self._stored.values())

    def _before(self, own: list[Any], module: Any, arguments: Any) -> None:
        if torch.is_grad_enabled() and any(one.requires_grad for one in own):
            raise errors.UnsupportedError(f"the parameters of '{type(module).__name__}' are offloaded, and a backward pass would "
                                          "need them. Call the module inside of torch.no_grad(), or call restore() first.")
        with self._lock:
            for one in own:
                if self._users[one] == 0:
                    one.data = self._stored[one].load()
                self._users[one] += 1

    def _after(self, own: list[Any], module: Any, arguments: Any, result: Any) -> None:
        with self._lock:
            for one in own:
                if self._users[one] > 0:
                    self._users[one] -= 1
                    if self._users[one] == 0:
                        one.data = torch.empty(0, dtype=one.dtype, device=one.device)

    def restore(self) -> None:
        """Copy the parameters back into tensors, and remove the hooks. A second call does nothing."""
        with self._lock:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()
            for one, stored in self._stored.items():
                one.data = stored.load()
            self._stored.clear()

    def __enter__(self) -> OffloadedParameters:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.restore()


def offload_parameters(module: Any, min_bytes: int = 1 << 20, device: Any = None) -> OffloadedParameters:
    """Keep the parameters of a module in unified buffers, for inference.

    Each submodule gets its parameters as tensors while its ``forward()`` runs. In between, Tern moves them to the host when
    the budget of the device is at its limit. Call the module inside of ``torch.no_grad()``.

    >>> with ternmem.torch.offload_parameters(model), torch.no_grad():  # doctest: +SKIP
    ...     y = model(x)

    Parameters
    ----------
    module : torch.nn.Module
    min_bytes : int
        Smaller parameters stay where they are.
    device : Device or str, optional
        The device of the unified buffers. By default the device of the parameter, and the current device for CPU tensors.
    """
    opened = _core.open_device(device) if isinstance(device, str) else device
    return OffloadedParameters(module, min_bytes, opened)
