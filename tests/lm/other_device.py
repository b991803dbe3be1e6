"""A device that is not the default, on a machine that has none: tensors of the host and of the device do not mix.

Inside `other_device`, a tensor made without a device, or of a numpy array, lies on the host (`HostTensor`); one made
with a device, moved by `to`, or read from a file of weights lies on the device. An operation on both raises, and so do
numpy arrays of what lies on the device. Numbers are computed by the processor all the while, so that results can be
compared with those of an ordinary run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from silo.lm.model import load_network
from silo.lm.network import make_network

_MADE = {torch.zeros, torch.ones, torch.empty, torch.full, torch.tensor, torch.arange, torch.as_tensor}
_MOVES = {torch.Tensor.to}
_FETCHES = {torch.Tensor.cpu}
_LOOKS = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.__float__, torch.Tensor.__int__}


class WrongDeviceError(RuntimeError):
    """What a machine with such a device would say."""


class HostTensor(torch.Tensor):
    """A tensor in the memory of the host."""


class _OtherDevice(TorchFunctionMode):
    paused = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(options or {})
        if self.paused:
            return function(*arguments, **given)
        if function in _MADE and given.get("device") is None:
            return _host(_plainly(function, arguments, given))
        tensors = [item for item in tree_flatten((arguments, given))[0] if isinstance(item, torch.Tensor)]
        on_host = [isinstance(item, HostTensor) for item in tensors]
        if function in _MOVES and _names_device(arguments[1:], given):
            return _plainly(function, arguments, given)
        if function in _FETCHES:
            return _host(_plainly(function, arguments, given))
        if function in (torch.Tensor.numpy,) and not all(on_host):
            raise WrongDeviceError("a numpy array of what lies on the device")
        large = [host for host, item in zip(on_host, tensors, strict=True) if item.dim() or host]
        if any(host and item.dim() for host, item in zip(on_host, tensors, strict=True)) and not all(large):
            raise WrongDeviceError(f"{function.__name__} of tensors on the host and on the device")
        found = _plainly(function, arguments, given)
        return tree_map(_host, found) if tensors and all(on_host) and function not in _LOOKS else found


def _names_device(arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return any(isinstance(item, str | torch.device) for item in [*arguments[:1], options.get("device")])


def _plainly(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    """Call a function on ordinary tensors."""
    plain = tree_map(
        lambda item: item.as_subclass(torch.Tensor) if type(item) is HostTensor else item, (arguments, options)
    )
    return function(*plain[0], **plain[1])


def _host(found: Any) -> Any:
    return found.as_subclass(HostTensor) if type(found) is torch.Tensor else found


@contextmanager
def other_device() -> Iterator[None]:
    """For the calls of this thread, which must not start others."""
    threads, from_numpy, mode = torch.get_num_threads(), torch.from_numpy, _OtherDevice()

    def unseen(make: Callable[..., Any]) -> Callable[..., Any]:
        """Networks are made on the host and moved as a whole, which torch does in ways of its own."""

        def made(*arguments: Any, **options: Any) -> Any:
            mode.paused = True
            try:
                return make(*arguments, **options)
            finally:
                mode.paused = False

        return made

    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch, torch._C.DisableTorchFunctionSubclass(), mode:
            patch.setattr(torch, "from_numpy", lambda array: _host(from_numpy(array)))  # no mode sees it
            patch.setattr("silo.lm.model.load_network", unseen(load_network))
            patch.setattr("silo.lm.training.train.make_network", unseen(make_network))
            yield
    finally:
        torch.set_num_threads(threads)
