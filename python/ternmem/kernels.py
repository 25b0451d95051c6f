"""Kernels that are written once and run on every device.

>>> import ternmem as tern
>>> saxpy = tern.elementwise("in<float> x, inout<float> y, float a", "y += a * x")
>>> x, y = tern.Array([1, 2], "float32", "sim"), tern.Array([3, 4], "float32", "sim")
>>> mark = saxpy(x, y, 10)
>>> y.to_numpy().tolist()
[13.0, 24.0]
"""

from __future__ import annotations

import typing
import zlib

from . import _core

__all__ = ["PortableKernel", "elementwise", "kernel", "reduction"]


def _name_of(*parts: str) -> str:
    """A name that depends on the text only, so that compiled code on disk is found again."""
    return f"unnamed_{zlib.crc32(chr(10).join(parts).encode()):08x}"


class PortableKernel:
    """A kernel for every device, from a text. Made by :func:`kernel`, :func:`elementwise` or :func:`reduction`.

    A call launches the kernel on the device of its first array. The text is compiled at the first call for a
    device. Several threads may call it.
    """

    def __init__(self, text: str, entry: str = "") -> None:
        self._text = text
        self._entry = entry
        self._kernels: dict[int, _core.Kernel] = {}

    @property
    def text(self) -> str:
        """The text, in the language of portable kernels."""
        return self._text

    def on(self, device: _core.Device | str) -> _core.Kernel:
        """Return the kernel for one device, and compile it if this is the first use.

        Parameters
        ----------
        device : Device or str

        Returns
        -------
        Kernel
        """
        opened = _core.open_device(device) if isinstance(device, str) else device
        found = self._kernels.get(opened.id)
        if found is None:
            # Two threads may compile at once; both get the kernel of the first.
            made = _core.Kernel.from_text(opened, self._text, self._entry)
            found = self._kernels.setdefault(opened.id, made)
        return found

    def forget(self) -> None:
        """Drop the compiled kernels, which keep their devices open. The next call compiles again."""
        self._kernels.clear()

    def __call__(
        self,
        *arguments: typing.Any,
        size: int | _core.Elements | _core.LaunchSize | None = None,
        stream: _core.Stream | None = None,
    ) -> _core.Mark:
        """Launch the kernel, and return before it has run.

        Parameters
        ----------
        *arguments
            Memory, such as arrays and unified buffers, and numbers.
        size : int, Elements, LaunchSize, optional
            The number of threads. Kernels of elements and reductions know it.
        stream : Stream, optional
            By default, the default stream of the device.

        Returns
        -------
        Mark
            The end of the launch.
        """
        device = stream.device if stream is not None else _device_of(arguments)
        return self.on(device).launch(stream, size, *arguments)

    def __repr__(self) -> str:
        first = self._text.strip().split("{", 1)[0].strip()
        return f"PortableKernel('{first}')"


def _device_of(arguments: tuple[typing.Any, ...]) -> _core.Device:
    for name in ("device", "default_device"):  # a unified buffer has the second
        for argument in arguments:
            memory = argument.memory if isinstance(argument, _core.Use) else argument
            device = getattr(memory, name, None)
            if isinstance(device, _core.Device):
                return device
    raise TypeError("no argument is memory of a device. Pass an array, or name a stream.")


def kernel(text: str, entry: str = "") -> PortableKernel:
    """Make a kernel from a text with all its parameters.

    Parameters
    ----------
    text : str
        One or more kernels, such as ``"kernel k(in<float> x, out<float> y) { ... }"``.
    entry : str, optional
        The name of the kernel. May be left out if the text has one kernel.

    Returns
    -------
    PortableKernel
    """
    return PortableKernel(text, entry)


def elementwise(parameters: str, operation: str, name: str | None = None) -> PortableKernel:
    """Make a kernel that computes each element by itself.

    Parameters
    ----------
    parameters : str
        For example ``"in<float> x, inout<float> y, float a"``.
    operation : str
        Statements in which the name of an array is its element, such as ``"y += a * x"``.
    name : str, optional
        The name in reports.

    Returns
    -------
    PortableKernel
    """
    called = name or _name_of(parameters, operation)
    # The line break ends a comment.
    return PortableKernel(f"element {called}({parameters}) {{ {operation}\n; }}", called)


def reduction(
    result: str, parameters: str, map: str, combine: str = "a + b", identity: str = "0", name: str | None = None
) -> PortableKernel:
    """Make a kernel that combines a value of each element to one value.

    The result has the same bits on every device. A call takes the array or scalar for the result as its last
    argument.

    Parameters
    ----------
    result : str
        The type of the result, such as ``"double"``.
    parameters : str
        For example ``"in<float> x, in<float> y"``.
    map : str
        The value of an element, such as ``"x * y"``.
    combine : str
        How two values ``a`` and ``b`` are combined. The result must not depend on their order.
    identity : str
        The value that changes no other one, and the result for no elements.
    name : str, optional
        The name in reports.

    Returns
    -------
    PortableKernel
    """
    called = name or _name_of(result, parameters, map, combine, identity)
    return PortableKernel(
        f"reduction<{result}> {called}({parameters}) {{ identity = {identity}\n; map = {map}\n; combine = {combine}\n; }}",
        called,
    )
