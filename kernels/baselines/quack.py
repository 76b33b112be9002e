"""QuACK's CuTe-DSL norms. Its layernorm takes fp32 gamma and beta; they are widened once, untimed."""

from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "quack-kernels"
JIT = "hidden"


def prepare(t):
    """A launch of QuACK's forward."""
    if t.point.semantics.stats:
        raise Unsupported("QuACK is raced without saved statistics")
    if t.op == "layernorm":
        if t.gamma is None:
            raise Unsupported("QuACK's layernorm needs gamma")
        gamma = t.gamma.float()
        beta = None if t.beta is None else t.beta.float()
        return lambda: {"y": layernorm_fwd(t.x, gamma, beta, t.eps)}
    return lambda: {"y": rmsnorm_fwd(t.x, t.gamma, eps=t.eps, weight_offset=t.point.semantics.offset)[0]}
