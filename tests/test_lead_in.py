"""What a sample begins with, the end of a streaming rotation or all of a graph that goes round its sets again, and
what it is of where there are several graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from normbench.gpu import CudaGraph, Launch, Places


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
        (4, 32, 1),  # streams on a card with little memory
        (2, 32, None),
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


def test_samples_take_turns_and_a_replay_is_one_of_all() -> None:
    parts = [Graph() for _ in range(3)]
    sets: list[list[Launch]] = [[lambda: {}, lambda: {}] for _ in parts]
    graphs = [
        CudaGraph(part, [{"y": 2 * place}, {"y": 2 * place + 1}], 256, bound, lambda *_: (Graph(), []))
        for place, (part, bound) in enumerate(zip(parts, sets, strict=True))
    ]
    places = Places(graphs)

    assert [places.turn() for _ in range(4)] == [*graphs, graphs[0]]
    places.replay()
    assert [part.replays for part in parts] == [1, 1, 1]
    assert (places.launches, places.each) == (256, 2)
    assert places.bound == [launch for bound in sets for launch in bound]
    assert [outputs["y"] for outputs in places.outputs] == [*range(6)]
