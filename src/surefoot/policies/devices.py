"""Where and how the models of this process are loaded, and whether they can run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from surefoot.concurrency import own_device
from surefoot.errors import DeviceError
from surefoot.extras import need

if TYPE_CHECKING:
    from torch import nn

AS_SAVED = "auto"


class Loading(BaseModel):
    """Device, type of weights and attention of models that are loaded into this process.

    The same settings for policies, judges, reward models and the models that training starts from. Raises
    ``DeviceError`` if the device does not exist.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    device: str = Field(default="cpu", description="Where models run: `cpu`, `cuda`, `cuda:1`, `mps`.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Type of the weights; `auto` = as saved, so bfloat16 stays bfloat16."
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2", "flex_attention"] = Field(
        default="auto",
        description="Attention kernels, by their name in transformers; `auto` = as transformers chooses.",
    )
    batch_tokens: int = Field(
        default=16_384, ge=1, description="Tokens of one forward pass of a reward model."
    )
    device_map: Literal["auto", "balanced", "balanced_low_0", "sequential"] | None = Field(
        default=None,
        description="Spread the layers of a model that one device cannot hold over all of them (accelerate), "
        "in place of `--device`.",
    )
    tf32: bool = Field(
        default=False,
        description="Multiply float32 matrices in TF32 (10 bits of mantissa) on GPUs; off = exactly.",
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, name: str, info: ValidationInfo) -> str:
        if not (info.context or {}).get("dry_run"):  # a prediction needs none
            check_device(name)
        return name

    def as_saved(self) -> Loading:
        """The same, with weights in the type in which they were saved."""
        return self.model_copy(update={"dtype": AS_SAVED})

    def in_float32(self) -> Loading:
        """The same, with weights in float32, as training needs them."""
        return self.model_copy(update={"dtype": "float32"})

    def options(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained``. The only place that sets the precision of CUDA's products."""
        import torch

        torch.set_float32_matmul_precision("high" if self.tf32 else "highest")
        options: dict[str, Any] = {"dtype": self.dtype}
        if self.attention != "auto":
            options["attn_implementation"] = self.attention
        if self.device_map is not None:
            need("accelerate", "'device_map'")
            options["device_map"] = self.device_map
        return options

    def place(self, model: nn.Module) -> None:
        """Move a model that was loaded with :meth:`options`, unless it is spread over several devices."""
        if self.device_map is None:
            model.to(own_device(self.device))

    def cast(self, *models: nn.Module) -> None:
        """Put weights that were loaded as saved into the type."""
        import torch

        if self.dtype != AS_SAVED:
            for model in models:
                model.to(dtype=getattr(torch, self.dtype))


def check_device(name: str) -> None:
    """Raise ``DeviceError`` if this machine, with this build of torch, lacks the device ``name``.

    Checked before a model is loaded: torch itself fails only when the weights are moved, with a different
    error on each kind of machine.
    """
    if name == "cpu":
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError(f"device {name!r} does not exist; choose cpu, cuda, cuda:1 or mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise DeviceError(
            f"device {name!r}: torch {torch.__version__} sees {torch.cuda.device_count()} GPUs; choose cpu, "
            "check the driver with nvidia-smi, or install a build with CUDA (https://pytorch.org/get-started)"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise DeviceError(f"device {name!r}: this machine has no Apple GPU that torch can use; choose cpu")


LOADING = Loading()
"""On the CPU, as saved."""

FLOAT32 = LOADING.in_float32()
"""On the CPU, in the type that training needs."""
