"""PyTorch eager: torch.nn.functional.layer_norm and rms_norm."""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"


def prepare(t):
    """A launch of the eager function; layernorm with statistics by the native operator that returns them."""
    shape = (t.hidden,)
    if t.op == "layernorm" and t.gamma is not None and t.gamma.dtype != t.x.dtype:
        raise Unsupported("torch's layer_norm takes gamma and beta of the input's type")
    if t.op == "layernorm" and t.point.semantics.stats:

        def run():
            y, mean, rstd = torch.native_layer_norm(t.x, shape, t.gamma, t.beta, t.eps)
            return {"y": y, "mean": mean.flatten(), "rstd": rstd.flatten()}

        return run
    if t.point.semantics.stats:
        raise Unsupported("torch.nn.functional.rms_norm hands out no statistics")
    if t.op == "layernorm":
        return lambda: {"y": torch.nn.functional.layer_norm(t.x, shape, t.gamma, t.beta, t.eps)}
    return lambda: {"y": torch.nn.functional.rms_norm(t.x, shape, t.gamma, t.eps)}
