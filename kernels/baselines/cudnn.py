"""cuDNN's norms through its frontend: one graph per point, inference phase, fp32 gamma and beta."""

import cudnn
import torch
from normbench.contenders import Unsupported

LANG = "library"
DISTRIBUTION = "nvidia-cudnn-frontend"
TYPES = {
    torch.float32: cudnn.data_type.FLOAT,
    torch.float16: cudnn.data_type.HALF,
    torch.bfloat16: cudnn.data_type.BFLOAT16,
}


def prepare(t):
    """A launch of a cuDNN execution plan.

    Raises:
        Unsupported: gamma or beta is absent, or cuDNN has no engine for the point.
    """
    if t.point.semantics.stats or t.gamma is None or (t.op == "layernorm" and t.beta is None):
        raise Unsupported("cuDNN is raced with gamma (and beta for layernorm), without saved statistics")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(
        io_data_type=TYPES[t.x.dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=handle,
    )
    columns = {"dim": (1, t.hidden, 1, 1), "stride": (t.hidden, 1, t.hidden, t.hidden)}
    x = graph.tensor(name="x", dim=(t.rows, t.hidden, 1, 1), stride=(t.x_stride, 1, t.hidden, t.hidden))
    gamma = graph.tensor(name="gamma", data_type=cudnn.data_type.FLOAT, **columns)
    one = {"dim": (1, 1, 1, 1), "stride": (1, 1, 1, 1)}
    eps = graph.tensor(name="eps", data_type=cudnn.data_type.FLOAT, is_pass_by_value=True, **one)
    phase = cudnn.norm_forward_phase.INFERENCE
    pack = {x: t.x, gamma: t.gamma.float(), eps: torch.full((1, 1, 1, 1), t.eps)}
    if t.op == "layernorm":
        beta = graph.tensor(name="beta", data_type=cudnn.data_type.FLOAT, **columns)
        pack[beta] = t.beta.float()
        y, *_ = graph.layernorm(norm_forward_phase=phase, input=x, scale=gamma, bias=beta, epsilon=eps)
    else:
        y, *_ = graph.rmsnorm(norm_forward_phase=phase, input=x, scale=gamma, epsilon=eps)
    y.set_output(True).set_data_type(TYPES[t.x.dtype])
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise Unsupported(f"cuDNN has no engine for this point ({str(error).splitlines()[0][:150]})") from error
    workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=t.x.device)

    def run():
        out = torch.empty(t.rows, t.hidden, dtype=t.x.dtype, device=t.x.device)
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute({**pack, y: out}, workspace, handle=handle)
        return {"y": out}

    return run
