"""Liger-Kernel's Triton norms; RMSNorm in the casting mode that matches the semantics (gemma: one cast at the end)."""

from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
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
    if t.gamma is None or (t.norm == "layernorm" and t.beta is None):
        raise Unsupported("Liger needs gamma, and beta for layernorm")
    if t.residual is not None and t.norm == "layernorm":
        raise Unsupported("Liger's layernorm takes no residual")
    if t.norm == "layernorm":
        return lambda: {"y": LigerLayerNormFunction.apply(t.x, t.gamma, t.beta, t.eps)}
    mode = "llama" if t.point.semantics.cast == "llama" else "gemma"
    offset = t.point.semantics.offset
    if t.residual is not None:
        return _added(t, offset, mode)
    return lambda: {"y": LigerRMSNormFunction.apply(t.x, t.gamma, t.eps, offset, mode, False)}


def _added(t, offset, mode):
    """Its fused form rounds the sum before the norm."""
    if t.residual_mode == "fp32" and t.x.element_size() < 4:
        raise Unsupported("Liger rounds the sum before its norm")

    def run():
        y, total = LigerFusedAddRMSNormFunction.apply(t.x, t.residual, t.gamma, t.eps, offset, mode, False)
        return {"y": y, "sum": total}

    return run
