"""The device copy of x, and of a residual: not a norm, but the traffic of one; its check is that y equals x."""

LANG = "torch"
DISTRIBUTION = "torch"
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
