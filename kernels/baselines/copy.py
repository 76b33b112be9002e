"""The device copy of x: not a norm, but the traffic of one; its check is that y equals x."""

LANG = "torch"
DISTRIBUTION = "torch"
CHECK = "copy"


def prepare(t):
    """A launch of torch's device copy into y."""
    y = t.y

    def run():
        y.copy_(t.x)
        return {"y": y}

    return run
