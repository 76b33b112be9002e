"""QuACK's CuTe-DSL norms. Its layernorm takes fp32 gamma and beta; they are widened once, untimed."""

from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "quack-kernels"
JIT = "hidden"
GAMMA = "offset"


def prepare(t):
    """A launch of QuACK's forward."""
    if t.point.semantics.stats:
        raise Unsupported("QuACK is raced without saved statistics")
    if t.residual is not None:
        return _added(t)
    if t.op == "layernorm":
        if t.gamma is None:
            raise Unsupported("QuACK's layernorm needs gamma")
        gamma = t.gamma.float() + t.offset
        beta = None if t.beta is None else t.beta.float()
        return lambda: {"y": layernorm_fwd(t.x, gamma, beta, t.eps)}
    return lambda: {"y": rmsnorm_fwd(t.x, t.gamma, eps=t.eps, weight_offset=t.offset)[0]}


def _added(t):
    """Its rmsnorm adds in fp32 and hands the sum out in the type of x."""
    if t.norm == "layernorm":
        raise Unsupported("QuACK's layernorm takes no residual")
    if t.residual_mode == "round" and t.x.element_size() < 4:
        raise Unsupported("QuACK takes the sum into its norm as formed in fp32")
    offset = t.offset

    def run():
        y, total, _ = rmsnorm_fwd(t.x, t.gamma, residual=t.residual, eps=t.eps, weight_offset=offset)
        return {"y": y, "sum": total}

    return run


def prepare_backward(t):
    """A launch of QuACK's backward: its kernel, and the sum of its partial sums by torch.

    Raises:
        Unsupported: no statistics are given, or its layernorm is asked for what it lacks.
    """
    if t.rstd is None:
        raise Unsupported("QuACK's gradients want saved statistics")
    if t.norm == "layernorm":
        if t.gamma is None or t.residual is not None or t.offset:
            raise Unsupported("QuACK's layernorm needs gamma as it is, and takes no residual gradient")
        has_beta = t.dbeta is not None
        names = ("dx", "dgamma", "dbeta")[: 2 + has_beta]
        return lambda: dict(zip(names, layernorm_bwd(t.x, t.gamma, t.dy, t.rstd, t.mean, has_beta), strict=False))
    offset = t.offset

    def run():
        dx, dgamma, _, _ = rmsnorm_bwd(t.x, t.gamma, t.dy, t.rstd, dresidual_out=t.residual, weight_offset=offset)
        return {"dx": dx} if dgamma is None else {"dx": dx, "dgamma": dgamma}

    return run
