"""cuDNN's norms through its frontend: one graph per point, inference phase, gamma and beta as they are given."""

import cudnn
import torch

from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "nvidia-cudnn-frontend"


_plans = {}


def prepare(t):
    """A launch of a cuDNN execution plan, built once a point.

    Raises:
        Unsupported: gamma or beta is absent, or cuDNN has no engine for the point.
    """
    if t.residual is not None:
        raise Unsupported("cuDNN is raced without a residual")
    if t.point.semantics.stats or t.gamma is None or (t.norm == "layernorm" and t.beta is None):
        raise Unsupported("cuDNN is raced with gamma (and beta for layernorm), without saved statistics")
    # cuDNN takes rows as images of one pixel and hidden channels
    values = {
        "input": t.x.as_strided((t.rows, t.hidden, 1, 1), (t.x_stride, 1, 1, 1)),
        "scale": t.gamma.view(1, t.hidden, 1, 1),
        "epsilon": torch.full((1, 1, 1, 1), t.eps),
    }
    if t.norm == "layernorm":
        values["bias"] = t.beta.view(1, t.hidden, 1, 1)
    if t.point.key not in _plans:
        _plans.clear()
        _plans[t.point.key] = _plan(t, values)
    handle, graph, tensors, y = _plans[t.point.key]
    pack = {tensors[name]: value for name, value in values.items()}
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=t.x.device)

    def run():
        out = torch.empty((t.rows, t.hidden, 1, 1), dtype=t.x.dtype, device=t.x.device)
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute({**pack, y: out}, workspace, handle=handle)
        return {"y": out.view(t.rows, t.hidden)}

    return run


def _plan(t, values):
    """(handle, graph, tensors by name, output tensor) of the point."""
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        intermediate_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT, handle=handle
    )
    tensors = {name: graph.tensor_like(value) for name, value in values.items()}
    norm = graph.layernorm if t.norm == "layernorm" else graph.rmsnorm
    y, *_ = norm(norm_forward_phase=cudnn.norm_forward_phase.INFERENCE, **tensors)
    y.set_output(True).set_data_type(t.x.dtype)
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise Unsupported(f"cuDNN has no engine for this point ({str(error).splitlines()[0][:150]})") from error
    return handle, graph, tensors, y
