"""normbench: which LayerNorm or RMSNorm kernel wins on this GPU, how close it is to the roof, and why to believe it."""

__version__ = "0.1.0"
