"""Whether a model can run where it is asked to."""

from __future__ import annotations

from surefoot.errors import DeviceError


def check_device(name: str) -> None:
    """Raise ``DeviceError`` if this machine, with this build of torch, has no device ``name``.

    Asked before a model is loaded, since torch itself says so only when the weights are moved, and says
    something else on each kind of machine.
    """
    if name == "cpu":
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device {name!r} is none; choose cpu, cuda, cuda:1 or mps") from None
    if device.type == "cuda":
        _check_cuda(name, device.index or 0)
    elif device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError(f"device {name!r}: this machine has no Apple GPU that torch can use; choose cpu")


def _check_cuda(name: str, index: int) -> None:
    import torch

    if torch.version.cuda is None and torch.version.hip is None:
        raise DeviceError(
            f"device {name!r}: this torch ({torch.__version__}) is built without CUDA; choose cpu, or "
            "install a build with CUDA (https://pytorch.org/get-started)"
        )
    count = torch.cuda.device_count()
    if not count:
        raise DeviceError(
            f"device {name!r}: torch sees no GPU; choose cpu, or check the driver with nvidia-smi"
        )
    if index >= count:
        raise DeviceError(f"device {name!r}: torch sees {count} GPU(s); choose cuda:0 to cuda:{count - 1}")
