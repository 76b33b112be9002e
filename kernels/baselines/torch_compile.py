"""torch.compile of the eager function: default mode, one full graph, static shapes, compiled anew for every point.

Backward: of the formula that torch decomposes its own operators into, in fp32. Scale-only norms: of their definitions,
in fp32.
"""

import torch

from normbench.contenders import Unsupported

LANG = "torch"
DISTRIBUTION = "torch"
REGIMES = "stream l2 latency wide"
JIT = "rows"
# no llama: what it compiles leaves out casts on the way
GAMMA = "offset"
_compiled = {}


def _function(t):
    """The eager function of x, residual, gamma and beta; it returns y, or (y, sum)."""
    shape, eps, functional = (t.hidden,), t.eps, torch.nn.functional
    offset, dtype = t.offset, t.x.dtype

    def norm(x, gamma, beta):
        if offset and gamma is not None:
            x, gamma, beta = (None if p is None else p.float() for p in (x, gamma, beta))
            return plain(x, gamma + offset, beta).to(dtype)
        return plain(x, gamma, beta)

    def plain(x, gamma, beta):
        if t.norm == "layernorm":
            return functional.layer_norm(x, shape, gamma, beta, eps)
        return functional.rms_norm(x, shape, gamma, eps)

    if t.residual is None:
        return lambda x, _, gamma, beta: norm(x, gamma, beta)

    def added(x, residual, gamma, beta):
        total = x.float() + residual.float()
        gamma, beta = (None if p is None else p.float() for p in (gamma, beta))
        return norm(total, gamma, beta).to(x.dtype), total.to(x.dtype)

    return added


def prepare(t):
    """A launch of the compiled graph.

    Raises:
        RuntimeError: no compiled graph ran, so this would time eager under another name.
    """
    if t.point.semantics.stats:
        raise Unsupported("torch.compile is raced without saved statistics")
    if t.residual_mode == "round" and t.x.dtype != torch.float32:
        raise Unsupported("torch.compile keeps the sum in fp32 whatever the function says")
    compiled = _compile(t, _function(t), (t.x, t.residual, t.gamma, t.beta))
    if t.residual is None:
        return lambda: {"y": compiled(t.x, None, t.gamma, t.beta)}
    return lambda: dict(zip(("y", "sum"), compiled(t.x, t.residual, t.gamma, t.beta), strict=True))


def _compile(t, function, arguments):
    """The compiled function of the point, called once."""
    if t.point.key not in _compiled:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        _compiled.clear()
        _compiled[t.point.key] = torch.compile(function, fullgraph=True, dynamic=False)
        _compiled[t.point.key](*arguments)
        if torch._dynamo.utils.counters["stats"]["unique_graphs"] != 1:
            raise RuntimeError("torch.compile ran no compiled graph")
    return _compiled[t.point.key]


def _scaled(t):
    """The definition of a scale-only norm, of x alone."""
    kind, eps = t.norm, t.eps

    def scaled(x):
        wide = x.float()
        if kind == "l1norm":
            scale = torch.mean(torch.abs(wide), dim=1, keepdim=True)
        elif kind == "l2norm":
            scale = torch.norm(wide, p=2, dim=1, keepdim=True)
        else:
            scale = torch.sqrt(torch.mean(wide**2, dim=1, keepdim=True) + eps)
        return (wide / scale).to(x.dtype)

    return scaled


def prepare_scale(t):
    """A launch of the compiled definition.

    Raises:
        RuntimeError: no compiled graph ran.
    """
    compiled = _compile(t, _scaled(t), (t.x,))
    return lambda: {"y": compiled(t.x)}


def _gradients(t):
    """The eager function of x, dy, gamma, mean, rstd and a residual gradient; it returns dx, dgamma and dbeta."""
    centred, wanted = t.norm == "layernorm", (t.dgamma is not None, t.dbeta is not None)
    dtype, offset = t.x.dtype, t.offset
    param_dtype = dtype if t.gamma is None else t.gamma.dtype

    def gradients(x, dy, gamma, mean, rstd, residual):
        x, dy, rstd = x.float(), dy.float(), rstd[:, None]
        xhat = ((x - mean[:, None]) if centred else x) * rstd
        g = dy if gamma is None else dy * (gamma.float() + offset)
        dx = g - xhat * (g * xhat).mean(1, keepdim=True)
        if centred:
            dx = dx - g.mean(1, keepdim=True)
        dx = dx * rstd
        if residual is not None:
            dx = dx + residual.float()
        sums = [terms.sum(0).to(param_dtype) for terms, want in zip((dy * xhat, dy), wanted, strict=True) if want]
        return (dx.to(dtype), *sums)

    return gradients


def prepare_backward(t):
    """A launch of the compiled gradients.

    Raises:
        Unsupported: no statistics are given.
        RuntimeError: no compiled graph ran.
    """
    if t.rstd is None:
        raise Unsupported("torch.compile is raced with saved statistics")
    arguments = (t.x, t.dy, t.gamma, t.mean, t.rstd, t.residual)
    compiled = _compile(t, _gradients(t), arguments)
    names = ["dx", *(name for name, like in (("dgamma", t.dgamma), ("dbeta", t.dbeta)) if like is not None)]
    return lambda: dict(zip(names, compiled(*arguments), strict=True))
