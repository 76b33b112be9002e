"""Channel forms of the scale-only norms by moving the axis to the end, normalising rows there, and moving it back."""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"


def prepare_scale(t):
    """A launch of a transposing copy, torch's function for rows, and a transposing copy into y.

    Raises:
        Unsupported: the axis is at the end already.
    """
    if t.inner == 1:
        raise Unsupported("the axis is at the end already: torch_builtin")
    shape, order = (t.hidden,), 1 if t.norm == "l1norm" else 2

    def normalised(rows):
        if t.norm == "rmsnorm":
            return torch.nn.functional.rms_norm(rows, shape, None, t.eps)
        scale = torch.linalg.vector_norm(rows, ord=order, dim=-1, keepdim=True, dtype=torch.float32)
        return rows / (scale / t.hidden if order == 1 else scale)

    return lambda: {"y": t.y.copy_(normalised(t.x.movedim(1, -1).contiguous()).movedim(-1, 1))}
