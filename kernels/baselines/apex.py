"""NVIDIA Apex's fused norms (built from source; the package of that name on the index is another project)."""

from apex.normalization.fused_layer_norm import fused_layer_norm_affine, fused_rms_norm_affine

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "apex"


def prepare(t):
    """A launch of Apex's fused affine forward."""
    if t.residual is not None:
        raise Unsupported("Apex is raced without a residual")
    if t.point.semantics.stats or t.gamma is None or (t.norm == "layernorm" and t.beta is None):
        raise Unsupported("Apex is raced with gamma (and beta for layernorm), without saved statistics")
    shape = (t.hidden,)
    if t.norm == "layernorm":
        return lambda: {"y": fused_layer_norm_affine(t.x, t.gamma, t.beta, shape, t.eps)}
    return lambda: {"y": fused_rms_norm_affine(t.x, t.gamma, shape, t.eps)}
