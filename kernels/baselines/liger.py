"""Liger-Kernel's Triton norms; RMSNorm in the casting mode that matches the semantics (gemma: one cast at the end)."""

from liger_kernel.ops.layer_norm import LigerLayerNormFunction
from liger_kernel.ops.rms_norm import LigerRMSNormFunction

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "liger-kernel"
JIT = "hidden"


def prepare(t):
    """A launch of Liger's forward; it saves statistics for a backward whether asked or not."""
    if t.point.semantics.stats:
        raise Unsupported("Liger does not hand out its statistics")
    if t.gamma is None or (t.op == "layernorm" and t.beta is None):
        raise Unsupported("Liger needs gamma, and beta for layernorm")
    if t.op == "layernorm":
        return lambda: {"y": LigerLayerNormFunction.apply(t.x, t.gamma, t.beta, t.eps)}
    mode = "llama" if t.point.semantics.cast == "llama" else "gemma"
    offset = t.point.semantics.offset
    return lambda: {"y": LigerRMSNormFunction.apply(t.x, t.gamma, t.eps, offset, mode, False)}
