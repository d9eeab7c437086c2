"""States that differ only in names are one state.

Block ids are renamed in the order in which a walk over the state meets them, and requests are
ordered by what they look like. The bytes that come out are the key under which a state is remembered:
exact, no digest.
"""

from __future__ import annotations

from .bounds import Bounds
from .state import NOBODY, Request, State, name_of

_END = 255  # closes a list


class Renaming(dict[int, int]):
    """Ids in order of first use; 0 stays 0."""

    def __init__(self) -> None:
        super().__init__({0: 0})

    def __missing__(self, block: int) -> int:
        new = self[block] = len(self)
        return new


def _shape(request: Request) -> tuple[object, ...]:
    """What a request looks like without block ids."""
    pages = [(len(p.gpu), p.held, p.clean, p.proven, p.tainted, len(p.keys)) for p in request.pages]
    return (request.status, pages, request.computed, request.final, request.draft, len(request.hot), request.published)


class Symmetry:
    """Keys of the states within one bound."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._renamed: dict[tuple[int, ...], tuple[dict[int, int], dict[int, int]]] = {}

    def key(self, state: State) -> bytes:
        shapes = [_shape(request) for request in state.requests]
        order = tuple(sorted(range(len(shapes)), key=shapes.__getitem__))
        names, tags = self._renamed.get(order) or self._rename(order)
        place = {NOBODY: NOBODY, **{r: new for new, r in enumerate(order)}}
        gpu, host = Renaming(), Renaming()
        out: list[int] = []
        add = out.append
        for r in order:
            request = state.requests[r]
            out += (request.status, request.computed, request.final, request.draft, request.published)
            for page in request.pages:
                out += (host[page.host], page.held + 2 * page.clean + 4 * page.tainted, page.proven)
                for block in page.gpu:
                    add(gpu[block])
                add(_END)
                for block in page.keys:
                    add(gpu[block])
                add(_END)
            add(_END)
            for block in request.hot:
                add(gpu[block])
            add(_END)
            for block, content in request.lines:
                add(host[block])
                for tag in content:
                    add(tags[tag])
            add(_END)
        for t in sorted(state.transfers, key=lambda t: (place[t.owner], t.page, t.kind, t.progress, t.known)):
            out += (t.kind, place[t.owner], t.page, host[t.host], host[t.source])
            for block in t.gpu:
                add(gpu[block])
            out += (_END, t.leases_gpu + 2 * t.moves + 4 * t.lost, *t.progress, *t.known)
            for content in t.payload:
                for tag in content:
                    add(tags[tag])
        add(_END)
        for name, block in sorted([(names[name], block) for name, block in state.prefix]):
            out += (name, host[block])
        add(_END)
        for copies in (state.copies, state.key_copies):
            for block, copy in sorted([(host[block], [gpu[b] for b in copy]) for block, copy in copies]):
                out += (block, *copy)
            add(_END)
        for step in state.steps:
            out += (*sorted([gpu[b] for b in step.gpu]), _END, *sorted([host[b] for b in step.host]), _END)
        add(_END)
        for entry in sorted(state.fenced):
            out += (entry.steps, *[gpu[block] for block in entry.gpu], _END, host[entry.host])
        add(_END)
        for block in gpu:  # blocks that nobody names are blank, and alike
            out += (state.gpu_refs[block], block in state.gpu_free)
            for tag in state.gpu[block]:
                add(tags[tag])
        add(_END)
        for block in host:
            out += (state.host_refs[block], block in state.host_free)
            for views in (state.stream, state.durable):
                for view in views:
                    for tag in view[block]:
                        add(tags[tag])
        return bytes(out)

    def _rename(self, order: tuple[int, ...]) -> tuple[dict[int, int], dict[int, int]]:
        """Page names and tags after the requests have changed places."""
        bounds = self.bounds
        names = {
            name_of(bounds, r, page): name_of(bounds, place, page)
            for place, r in enumerate(order)
            for page in range(bounds.pages)
        }
        of_page = 2 * bounds.rows  # tags
        tags = {old * of_page + i: new * of_page + i for old, new in names.items() for i in range(1, of_page + 1)}
        self._renamed[order] = (names, {0: 0, **tags})
        return self._renamed[order]
