"""FlashInfer's CUDA norms; layernorm in bf16 with fp32 gamma and beta only, rmsnorm in 16-bit types."""

import torch
from flashinfer.norm import layernorm, rmsnorm

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "flashinfer-python"
JIT = "hidden"


def prepare(t):
    """A launch of FlashInfer's forward."""
    if t.residual is not None:
        raise Unsupported("FlashInfer adds in place, over its inputs")
    if t.point.semantics.stats or t.gamma is None:
        raise Unsupported("FlashInfer needs gamma and saves no statistics")
    if t.norm == "layernorm":
        if t.x.dtype != torch.bfloat16 or t.beta is None:
            raise Unsupported("FlashInfer's layernorm takes bf16 with gamma and beta")
        gamma, beta = t.gamma.float(), t.beta.float()
        return lambda: {"y": layernorm(t.x, gamma, beta, t.eps)}
    if t.x.dtype == torch.float32:
        raise Unsupported("FlashInfer's rmsnorm takes fp16 and bf16")
    return lambda: {"y": rmsnorm(t.x, t.gamma, t.eps)}
