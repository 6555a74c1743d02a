"""Layers that are no softmax attention, and indexers: stated beside the count, not in it."""

from __future__ import annotations

from collections.abc import Sequence

from mhaprof.huggingface.family import Apart, Family
from mhaprof.huggingface.keys import Keys, is_list, shown
from mhaprof.huggingface.patterns import COMBINED, EXPRESSIBLE, INDEXED, STATELESS, is_known
from mhaprof.huggingface.plan import LayersApart


def apart(keys: Keys, family: Family, types: Sequence[str]) -> tuple[LayersApart, ...]:
    """Return what each kind of layer holds beside softmax attention, in the file's order."""
    found = []
    unchecked = Keys(values=keys.values)  # of a state that cannot be read, the row says so
    for word in dict.fromkeys(types):
        row = family.apart.get(word)
        if row is None and word in EXPRESSIBLE:
            continue
        row = row or Apart()
        states = (row.state,) if row.state else family.states
        indices = [index for index, each in enumerate(types) if each == word]
        if word == INDEXED:
            own = _with_an_indexer(keys, len(types))
            indices = [index for index in indices if index in own]
        state = next((held for each in states if (held := unchecked.expression(each))), None)
        found.append(
            LayersApart(
                name=row.name or word,
                indices=tuple(indices),
                known=bool(row.name) or is_known(word),
                attends=word in EXPRESSIBLE or word in COMBINED,
                params=keys.expression(row.params) or 0,
                state_elements=0 if word in STATELESS else state,
                token_elements=keys.expression(row.per_token) or 0,
            )
        )
    return tuple(found)


def _with_an_indexer(keys: Keys, count: int) -> set[int]:
    """Return the layers that have an indexer of their own; others use an earlier one's choice."""
    name = keys.given("indexer_types", "index_topk_pattern")
    if name is not None:
        given = keys.values[name]
        words = [str(each) for each in given] if is_list(given) else list(str(given))
        if len(words) != count or set(words) - {"full", "shared", "F", "S"}:
            keys.fault(name, f"{shown(given)} does not say full or shared for {count} layers")
        return {index for index, word in enumerate(words) if word in ("full", "F")}
    every = keys.size("index_topk_freq") or 1
    offset = (keys.size("index_skip_topk_offset") or 2) - 1
    return {index for index in range(count) if max(index - offset, 0) % every == 0}
