"""PyTorch eager: torch.nn.functional.layer_norm and rms_norm, after an addition where there is a residual.

Backward: the operators that autograd calls, with the statistics that their forward saves. Scale-only norms: their
definitions, one operator after the other.
"""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"
REGIMES = "stream l2 latency wide"


def prepare(t):
    """A launch of the eager function; layernorm with statistics by the native operator that returns them."""
    shape = (t.hidden,)
    if t.residual is not None:
        return _added(t)
    if t.op == "layernorm" and t.gamma is not None and t.gamma.dtype != t.x.dtype:
        raise Unsupported("torch's layer_norm takes gamma and beta of the input's type")
    if t.op == "layernorm" and t.point.semantics.stats:

        def run():
            y, mean, rstd = torch.native_layer_norm(t.x, shape, t.gamma, t.beta, t.eps)
            return {"y": y, "mean": mean.flatten(), "rstd": rstd.flatten()}

        return run
    if t.point.semantics.stats:
        raise Unsupported("torch.nn.functional.rms_norm hands out no statistics")
    if t.op == "layernorm":
        return lambda: {"y": torch.nn.functional.layer_norm(t.x, shape, t.gamma, t.beta, t.eps)}
    return lambda: {"y": torch.nn.functional.rms_norm(t.x, shape, t.gamma, t.eps)}


def _added(t):
    """The composition a model writes; with the sum in fp32 it has to leave the type of x for a while."""
    if t.point.semantics.stats:
        raise Unsupported("the composition hands out no statistics")
    norm, shape = torch.nn.functional.layer_norm, (t.hidden,)
    wide = t.residual_mode == "fp32"
    gamma, beta = (None if p is None else p.float() if wide else p for p in (t.gamma, t.beta))

    def run():
        total = t.x.float() + t.residual.float() if wide else t.x + t.residual
        if t.norm == "layernorm":
            y = norm(total, shape, gamma, beta, t.eps)
        else:
            y = torch.nn.functional.rms_norm(total, shape, gamma, t.eps)
        return {"y": y.to(t.x.dtype), "sum": total.to(t.x.dtype)}

    return run


def prepare_scale(t):
    """A launch of the definition as KernelBench writes it; of 16-bit types in fp32, since their squares do not fit."""
    kind = t.norm

    def run():
        x = t.x.float()  # x itself where it is fp32
        if kind == "l1norm":
            scale = torch.mean(torch.abs(x), dim=1, keepdim=True)
        elif kind == "l2norm":
            scale = torch.norm(x, p=2, dim=1, keepdim=True)
        else:
            scale = torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + t.eps)
        return {"y": torch.div(x, scale, out=t.y)}

    return run


def prepare_backward(t):
    """A launch of the operator autograd calls.

    Raises:
        Unsupported: no statistics are given, dx is to be rounded after an addition, or this torch has no such operator.
    """
    if t.rstd is None or t.residual is not None:
        raise Unsupported("torch's gradients want saved statistics, and add nothing to dx before they round it")
    if t.gamma is not None and t.gamma.dtype != t.x.dtype:
        raise Unsupported("torch's gradients take gamma of the input's type")
    wanted = [t.dx is not None, t.dgamma is not None, t.dbeta is not None]
    shape, rstd, aten = (t.hidden,), t.rstd[:, None], torch.ops.aten
    if t.norm == "layernorm":
        mean, like_beta = t.mean[:, None], t.dbeta
        found = lambda: aten.native_layer_norm_backward(t.dy, t.x, shape, mean, rstd, t.gamma, like_beta, wanted)  # noqa: E731
    elif hasattr(aten, "_fused_rms_norm_backward"):
        found = lambda: aten._fused_rms_norm_backward(t.dy, t.x, shape, rstd, t.gamma, wanted[:2])  # noqa: E731
    else:
        raise Unsupported("torch has an operator for the gradients of rms_norm from 2.9 on")
    names = [name for name, present in zip(("dx", "dgamma", "dbeta"), wanted, strict=True) if present]
    return lambda: dict(zip(names, (tensor for tensor in found() if tensor is not None), strict=True))
