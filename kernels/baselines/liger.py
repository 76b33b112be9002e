"""Liger-Kernel's Triton norms; RMSNorm in the casting mode that matches the semantics (gemma: one cast at the end)."""

from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
from liger_kernel.ops.layer_norm import LigerLayerNormFunction, layer_norm_backward
from liger_kernel.ops.rms_norm import LigerRMSNormFunction, rms_norm_backward
from liger_kernel.ops.utils import calculate_settings

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "liger-kernel"
JIT = "hidden"
GAMMA = "llama offset"
GEMMA = 1  # its casting mode with everything in fp32 and one cast at the end
MOST_COLUMNS = 65536


def prepare(t):
    """A launch of Liger's forward; it saves statistics for a backward whether asked or not."""
    if t.point.semantics.stats:
        raise Unsupported("Liger does not hand out its statistics")
    if t.gamma is None or (t.norm == "layernorm" and t.beta is None):
        raise Unsupported("Liger needs gamma, and beta for layernorm")
    if t.residual is not None and t.norm == "layernorm":
        raise Unsupported("Liger's layernorm takes no residual")
    if t.norm == "layernorm" and t.offset:
        raise Unsupported("Liger's layernorm adds no offset to gamma")
    if t.norm == "layernorm":
        return lambda: {"y": LigerLayerNormFunction.apply(t.x, t.gamma, t.beta, t.eps)}
    mode, offset = "llama" if t.cast == "llama" else "gemma", t.offset
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


def prepare_backward(t):
    """A launch of the functions that Liger's autograd functions call, into a dx of its own.

    Raises:
        Unsupported: a row is longer than one of its blocks, or the work is not what it does.
    """
    if t.rstd is None or t.residual is not None:
        raise Unsupported("Liger's gradients want saved statistics, and take no residual gradient")
    if t.gamma is None or (t.norm == "layernorm" and t.dbeta is None):
        raise Unsupported("Liger needs gamma, and beta for layernorm")
    if t.hidden > MOST_COLUMNS:
        raise Unsupported(f"Liger holds a row in one block, of {MOST_COLUMNS} columns at most")
    if t.norm == "layernorm" and t.offset:
        raise Unsupported("Liger's layernorm adds no offset to gamma")
    if t.norm == "layernorm":
        like_beta = t.dbeta
        names = ("dx", "dgamma", "dbeta")
        return lambda: dict(zip(names, layer_norm_backward(t.dy, t.x, t.gamma, like_beta, t.mean, t.rstd), strict=True))
    offset, (block, warps) = t.offset, calculate_settings(t.hidden)

    def run():
        dx, dgamma = rms_norm_backward(t.dy, t.x, t.gamma, t.rstd, offset, GEMMA, block, warps, False, None)
        return {"dx": dx, "dgamma": dgamma}

    return run
