"""torch's layer_norm without gamma and beta, and an eager affine: what one would try first to keep its statistics."""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"
REGIMES = "wide"


def prepare(t):
    """A launch of the norm alone, then of the affine; in 16-bit types each of them rounds."""
    if t.op != "layernorm":
        raise Unsupported("a composition for layernorm")
    if t.point.semantics.stats:
        raise Unsupported("the composition hands out no statistics")
    if t.point.param_dtype != t.point.dtype:
        raise Unsupported("gamma and beta of another type would make y of theirs")

    def run():
        y = torch.nn.functional.layer_norm(t.x, (t.hidden,), None, None, t.eps)
        if t.gamma is not None:
            y = y * t.gamma
        if t.beta is not None:
            y = y + t.beta
        return {"y": y}

    return run
