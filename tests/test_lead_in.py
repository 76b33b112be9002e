"""What a sample begins with: the end of a streaming rotation, or all of a graph that goes round its sets again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from normbench.gpu import CudaGraph, Launch


class Graph:
    """Stands in for a captured graph: counts its replays."""

    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1

    def pool(self) -> None: ...


@pytest.mark.parametrize(
    ("sets", "launches", "led_by"),
    [
        (8, 8, 2),  # streams: the last quarter fills L2
        (4, 4, 1),
        (1, 1, None),  # alone, and so its own end
        (2, 256, None),  # in L2: the graph's commands must be there too
        (4, 8, None),
    ],
)
def test_what_leads_in(sets: int, launches: int, led_by: int | None) -> None:
    whole, part, recorded = Graph(), Graph(), []

    def record(bound: Sequence[Launch], count: int, _pool: Any) -> tuple[Any, list[dict[str, Any]]]:
        recorded.append((list(bound), count))
        return part, []

    bound: list[Launch] = [lambda: {} for _ in range(sets)]
    graph = CudaGraph(whole, [], launches, bound, record)
    graph.lead_in()
    graph.lead_in()

    assert (whole.replays, part.replays) == ((2, 0) if led_by is None else (0, 2))
    assert recorded == ([] if led_by is None else [(bound[-led_by:], led_by)])
