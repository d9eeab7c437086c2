"""States that differ only in names are one state.

Block ids are renamed in the order in which a walk over the state meets them, and requests are
ordered by what they look like. The bytes that come out are the key under which a state is remembered:
exact, no digest.
"""

from __future__ import annotations

from .bounds import Bounds
from .state import NOBODY, Content, Request, State, name_of

_END = 255  # closes a list


class Renaming:
    """Ids in order of first use; 0 stays 0."""

    def __init__(self) -> None:
        self._new = {0: 0}

    def __call__(self, block: int) -> int:
        return self._new.setdefault(block, len(self._new))

    def order(self) -> list[int]:
        return list(self._new)


def _shape(request: Request) -> tuple[object, ...]:
    """What a request looks like without block ids."""
    pages = tuple([(len(p.gpu), p.held, p.clean, p.proven, p.tainted, len(p.keys)) for p in request.pages])
    return (request.status, pages, request.computed, request.final, request.draft, len(request.hot), request.published)


def key(bounds: Bounds, state: State) -> bytes:
    order = sorted(range(len(state.requests)), key=lambda r: _shape(state.requests[r]))
    names = _renamed_names(bounds, order)
    gpu, host = Renaming(), Renaming()
    out: list[int] = []
    for r in order:
        request = state.requests[r]
        out += (request.status, request.computed, request.final, request.draft, request.published)
        for page in request.pages:
            out += (host(page.host), page.held + 2 * page.clean + 4 * page.tainted, page.proven, *map(gpu, page.gpu))
            out += (_END, *map(gpu, page.keys), _END)
        out += (_END, *map(gpu, request.hot), _END)
        for block, content in request.lines:
            out += (host(block), *_rename(bounds, names, content))
        out.append(_END)
    new_place = {r: place for place, r in enumerate(order)}
    for t in sorted(
        state.transfers, key=lambda t: (new_place.get(t.owner, NOBODY), t.page, t.kind, t.progress, t.known)
    ):
        out += (t.kind, new_place.get(t.owner, NOBODY), t.page, host(t.host), host(t.source), *map(gpu, t.gpu), _END)
        out += (t.leases_gpu + 2 * t.moves + 4 * t.lost, *t.progress, *t.known)
        for content in t.payload:
            out += _rename(bounds, names, content)
    out.append(_END)
    for name, block in sorted([(names[name], block) for name, block in state.prefix]):
        out += (name, host(block))
    out.append(_END)
    for copies in (state.copies, state.key_copies):
        for block, copy in sorted([(host(block), tuple(map(gpu, copy))) for block, copy in copies]):
            out += (block, *copy)
        out.append(_END)
    for step in state.steps:
        out += (*sorted(map(gpu, step.gpu)), _END, *sorted(map(host, step.host)), _END)
    out.append(_END)
    for entry in sorted(state.fenced):
        out += (entry.steps, *map(gpu, entry.gpu), _END, host(entry.host))
    out.append(_END)
    for block in gpu.order():  # blocks that nobody names are blank, and alike
        out += (state.gpu_refs[block], block in state.gpu_free, *_rename(bounds, names, state.gpu[block]))
    out.append(_END)
    for block in host.order():
        out += (state.host_refs[block], block in state.host_free)
        for view in (*state.stream, *state.durable):
            out += _rename(bounds, names, view[block])
    return bytes(out)


def _renamed_names(bounds: Bounds, order: list[int]) -> dict[int, int]:
    """Page names after the requests have changed places."""
    return {
        name_of(bounds, r, page): name_of(bounds, place, page)
        for place, r in enumerate(order)
        for page in range(bounds.pages)
    }


def _rename(bounds: Bounds, names: dict[int, int], content: Content) -> list[int]:
    rows = 2 * bounds.rows
    return [tag and names[(tag - 1) // rows] * rows + (tag - 1) % rows + 1 for tag in content]
