"""The device copy of x, and of a residual: not a norm, but the traffic of one; its check is that y equals x.

For a backward op, which reads two tensors and writes one, the sum of x and dy.
"""

import torch

LANG = "torch"
DISTRIBUTION = "torch"
REGIMES = "stream l2 latency wide"
CHECK = "copy"


def prepare(t):
    """A launch of torch's device copy into y."""
    y, total = t.y, t.sum

    def run():
        y.copy_(t.x)
        if total is None:
            return {"y": y}
        total.copy_(t.residual)
        return {"y": y, "sum": total}

    return run


prepare_scale = prepare


def prepare_backward(t):
    """A launch of torch's addition into dx."""
    dx = t.dx

    def run():
        torch.add(t.x, t.dy, out=dx)
        return {"dx": dx}

    return run
