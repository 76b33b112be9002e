"""Transformer Engine's LayerNorm and RMSNorm modules."""

import torch
import transformer_engine.pytorch as engine

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "transformer_engine"


def prepare(t):
    """A launch of the module's forward, its parameters set to gamma and beta."""
    if t.residual is not None:
        raise Unsupported("Transformer Engine is raced without a residual")
    if t.point.semantics.stats or t.gamma is None or (t.norm == "layernorm" and t.beta is None):
        raise Unsupported("Transformer Engine is raced with gamma (and beta for layernorm), without saved statistics")
    kind = engine.LayerNorm if t.norm == "layernorm" else engine.RMSNorm
    module = kind(t.hidden, eps=t.eps, params_dtype=t.gamma.dtype, device="cuda")
    with torch.no_grad():
        module.weight.copy_(t.gamma)
        if t.norm == "layernorm":
            module.bias.copy_(t.beta)
    return lambda: {"y": module(t.x)}
