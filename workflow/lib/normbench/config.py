"""The study's configuration: one typed source for defaults, schema, error messages and the documentation table."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SmallMemory(BaseModel):
    """Tier for cards whose memory cannot hold the default tensors."""

    model_config = ConfigDict(extra="forbid")
    below_gb: float = Field(24.0, gt=0, description="cards with less memory than this use the tier")
    elements: int = Field(2**25, ge=1, description="elements per tensor on such cards")


class Latency(BaseModel):
    """Points with few rows, x and gamma warm in L2, timed in a CUDA graph."""

    model_config = ConfigDict(extra="forbid")
    rows: list[int] = Field([1, 16, 128, 1024], min_length=1, description="row counts")
    hidden: list[int] = Field([4096, 8192], min_length=1, description="hidden sizes")


class Study(BaseModel):
    """Every key of config.yaml."""

    model_config = ConfigDict(extra="forbid")
    title: str = Field("normbench", description="title of the pages")
    ops: list[str] = Field(["layernorm", "rmsnorm"], min_length=1, description="operations, see ops.py")
    dtypes: list[str] = Field(["fp32", "fp16", "bf16"], min_length=1, description="element types of x and y")
    hidden: list[int] = Field(
        [256, 768, 1024, 2048, 2049, 4096, 8192, 16384, 32768, 65536], min_length=1, description="hidden sizes"
    )
    regimes: list[str] = Field(["stream"], min_length=1, description="stream, l2, latency")
    elements: int = Field(
        2**27, ge=1, description="elements per tensor in the stream regime; rows = elements // hidden"
    )
    l2_elements: int = Field(2**22, ge=1, description="elements per tensor in the l2 regime")
    latency: Latency = Field(Latency(), description="shapes of the latency regime")
    small_memory: SmallMemory = Field(SmallMemory(), description="tier for small cards")
    eps: float = Field(1e-5, gt=0, description="added to the variance inside the root")
    block: list[int] = Field([64, 128, 256, 512, 1024], min_length=1, description="threads a block to sweep")
    kernels: list[str] = Field(["*"], description="which of our kernels, by stem pattern, path.cu or module:function")
    baselines: list[str] = Field(["*"], description="which baselines, by stem pattern")
    archs: list[int] = Field([75, 80, 86, 89, 90, 100, 120], min_length=1, description="architectures of `cubins`")
    tune_samples: int = Field(5, ge=1, description="samples of the first round of tuning")
    race_ms: float = Field(250.0, gt=0, description="timing budget of a showdown point, all contenders together")
    timeout_s: float = Field(60.0, gt=0, description="a case that takes longer is ended and becomes a row")
