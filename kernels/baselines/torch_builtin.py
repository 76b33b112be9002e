"""Scale-only norms by the functions that torch has for them: fewer passes than the definition, no temporary like x."""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"


def prepare_scale(t):
    """A launch of vector_norm and a division, or of rms_norm.

    Raises:
        Unsupported: rms_norm knows no other axis than the last; torch_moved moves it.
    """
    if t.norm != "rmsnorm":
        order = 1 if t.norm == "l1norm" else 2

        def run():
            scale = torch.linalg.vector_norm(t.x, ord=order, dim=1, keepdim=True, dtype=torch.float32)
            return {"y": torch.div(t.x, scale / t.hidden if order == 1 else scale, out=t.y)}

        return run
    if t.inner > 1:
        raise Unsupported("torch.nn.functional.rms_norm normalises the last axis; torch_moved moves another one there")
    return lambda: {"y": torch.nn.functional.rms_norm(t.x, (t.hidden,), None, t.eps)}
