"""The calls of a trace, one after the other: what each was asked, what changed hands, what it answered.

| part of a line | is judged by                                                 |
|----------------|--------------------------------------------------------------|
| args           | what was computed and sealed; what ranks have said            |
| events         | the books: free or held, read or not, allowed or not          |
| answer         | the books behind it: hits, plans, imports                     |
| counts         | the same sums in the books; and every reference has a holder |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .books import HOLE, PINNED, Books, Import, Request, Transfer
from .holdings import Held, Steps, require
from .moves import move
from .plans import Plans
from .ranks import Rank, Ranks

Json = Any  # what a line of a trace holds
REFUSALS = ("ValueError", "ControlError")  # a bad argument, a call that the state does not allow


class Calls:
    def __init__(self, header: Json) -> None:
        self._layout, self._config = header["layout"], header["config"]
        self._ids = (header["gpu_blocks"], header["host_blocks"])
        self._size: int = self._layout["block_size"]
        self._epoch = 0
        self._last_id = 0  # of a transfer
        self._rows_left: set[int] = set()  # state rows that changed hands since the last plan
        self._recorded: dict[int, Rank] = {}  # ranks whose workers are recorded
        self._begin(Steps())

    def _begin(self, steps: Steps) -> None:
        """Empty books: at the start, and after a reset."""
        books = self.books = Books(steps, *self._ids, self._size)
        self._plans = Plans(self._layout, self._config, books, self._rows_left)
        self._ranks = Ranks(books, self._plans, self._recorded)
        self._importing: set[Request] = set()
        # In the call.
        self._leaving: Request | None = None
        self._given_up: set[Transfer] = set()
        self._copied: Transfer | None = None
        self._events: dict[str, Callable[..., None]] = {
            "gpu lease": books.gpu_lease,
            "gpu share": books.gpu_share,
            "gpu release": books.gpu_release,
            "host lease": books.host_lease,
            "host share": books.host_share,
            "host release": books.host_release,
            "publish": books.publish,
            "unpublish": books.unpublish,
            "enter": books.enter,
            "page": books.add_page,
            "move": self._move,
            "pop": self._pop,
            "drop": books.drop_gpu,
            "hot": books.grant_hot,
            "cool": lambda number: books.cool(books.request(number)),
            "transfer": self._transfer,
            "copy": self._copy,
            "retire": self._retire,
            "aside": self._aside,
        }

    def line(self, line: Json) -> None:
        """One line of the trace. Raises `Broken`; KeyError, TypeError or ValueError if it is not of the format."""
        if "worker" in line:
            self._ranks.line(line)
            return
        call, args, events = line["call"], line["args"], line["events"]
        if "raised" in line:
            require(not events, "T1", f"{call} raised {line['raised']}, and {events and events[0]} happened")
            require(line["raised"] in REFUSALS, "T3", f"{call} raised {line['raised']}")
        else:
            getattr(self, f"_before_{call}", _nothing)(args)
            for kind, *rest in events:
                if kind == "planned":
                    self.books.held.settle()
                    self._plans.planned(args["scheduled"], line["answer"], self._epoch)
                else:
                    self._events[kind](*rest)
            getattr(self, f"_behind_{call}", _nothing)(args, line["answer"])
            self._end_of_call()
            if call == "step_done":
                self.books.held.rest_is_over()
        self._compare(line["counts"])

    def _end_of_call(self) -> None:
        books = self.books
        for transfer in self._given_up:
            silent = sorted(transfer.writers - transfer.completed)
            require(False, "S8", f"transfer {transfer.id} is over before rank {silent[0][0]} completed it")
        for lease in books.lost:
            require(False, "B5", f"{lease.name} is lost to its readers, and nobody was handed it")
        for request in [request for request in self._importing if _is_over(request.incoming)]:
            self._importing.discard(request)
            for lease in request.incoming.kv if request.incoming is not None else ():
                books.held.drop(lease)
            request.incoming = None
        books.held.settle()
        books.leased.clear()
        self._leaving = self._copied = None

    def _compare(self, counts: Json) -> None:
        books, waiting = self.books, list(self.books.transfers.values())
        copies = sum(transfer.kind == "COPY" for transfer in waiting)
        detached = len(books.requests) - len(books.live)
        for invariant, name, ours in (
            ("B3", "gpu_free", books.gpu_free),
            ("B3", "host_free", books.host_free),
            ("B3", "host_cached", books.host_cached),
            ("B6", "published", len(books.prefix)),
            ("B14", "live", len(books.live)),
            ("B14", "detached", detached),
            ("B7", "transfers", len(waiting) - copies),
            ("B7", "copies", copies),
            ("B7", "aside", books.aside),
        ):
            require(counts[name] == ours, invariant, f"{name} is {counts[name]}, and by the books {ours}")

    # The engine's calls.

    def _live(self, args: Json) -> Request:
        request = self.books.live.get(args["request_id"])
        require(request is not None, "T2", f"request {args['request_id']!r} is not live")
        assert request is not None
        return request

    def _behind_cached_tokens(self, args: Json, answer: int) -> None:
        ours = len(self.books.hit(args["token_hashes"])) * self._size
        require(answer == ours, "S2", f"{answer} tokens are a hit, and {ours} are published with their index keys")

    def _behind_admit(self, args: Json, answer: Json) -> None:
        books, request_id = self.books, args["request_id"]
        if "reason" in answer:
            require(
                request_id not in books.live or answer["reason"] == "DUPLICATE", "T1", f"{request_id!r} was refused"
            )
            return
        request = self._live(args)
        require(request.row == answer["state_row"], "B14", f"row {answer['state_row']} for {request.row}")
        request.hashes = list(args["token_hashes"]) if self._config["host_tier"] else []
        hit = books.hit(request.hashes)
        require(len(request.pages) <= len(hit), "S2", f"{len(request.pages)} pages are a hit, {len(hit)} are published")
        for page, host in zip(request.pages, hit, strict=False):
            require(page.host is host, "S2", f"{page} is of {page.host and page.host.name}, the hit of {host.name}")
            require(page.keys is host.keys, "B12", f"{page} has other index keys than {host.name}")
        require(
            answer["cached_tokens"] == len(request.pages) * self._size, "S1", f"{answer['cached_tokens']} tokens cached"
        )
        adopted = sum(page.state == PINNED for page in request.pages)
        require(answer["adopted_pages"] == adopted, "B12", f"{answer['adopted_pages']} pages adopted, not {adopted}")
        request.computed = request.final = request.length = answer["cached_tokens"]

    def _behind_extend(self, args: Json, answer: Json) -> None:
        if "reason" in answer:
            return
        request, tokens = self._live(args), args["num_tokens"]
        request.length = max(request.length, tokens)
        pages = -(-request.length // self._size)
        require(len(request.pages) == pages, "S1", f"{request.length} positions on {len(request.pages)} pages")

    def _before_seal(self, args: Json) -> None:
        request, final = self._live(args), args["final_tokens"]
        bounds = f"{request.final} .. {request.computed}"
        require(request.final <= final <= request.computed, "S4", f"{final} tokens are final, expected {bounds}")
        request.final = final
        if self._config["host_tier"]:
            request.hashes += args.get("token_hashes", ())

    def _before_finish(self, args: Json) -> None:
        books, request = self.books, self._live(args)
        self._leaving = request
        del books.live[request.id]
        request.detached = True
        books.cool(request)
        books.hot_changed.pop(request)
        self._rows_left.add(request.row)
        if request.incoming is not None and request.incoming.outside:
            books.orphans[request.id] = request.incoming

    _before_preempt = _before_finish

    def _behind_finish(self, args: Json, answer: None) -> None:
        publishes = args.get("publish", True)
        self._left(publishes)

    def _behind_preempt(self, args: Json, answer: None) -> None:
        self._left(publishes=False)

    def _left(self, publishes: bool) -> None:
        request = self._leaving
        assert request is not None
        require(publishes or not request.pages, "S14", f"request {request.id!r} leaves, and pages of it stay")
        sealed = request.final // self._size
        require(len(request.pages) <= sealed, "S14", f"{len(request.pages)} pages stay, and {sealed} are final")
        if request.incoming is not None and request.id not in self.books.orphans:
            for lease in request.incoming.kv:
                self.books.held.drop(lease)
        request.incoming = None
        self._gone_if_empty(request)

    def _gone_if_empty(self, request: Request) -> None:
        if request.detached and not request.pages:
            self.books.requests.pop(request.number, None)

    def _behind_begin_import(self, args: Json, answer: Json) -> None:
        if "reason" in answer:
            return
        books, request = self.books, self._live(args)
        first = len(request.pages) - len(answer["pages"])
        incoming = Import(args["num_tokens"], request.pages[first:], copy=self._copied)
        in_flight = books.steps.last if books.steps.in_flight else None
        require(answer["after_step"] == in_flight, "S19", f"a transport may write after step {answer['after_step']}")
        for page, (index, host, keys) in zip(incoming.pages, answer["pages"], strict=True):
            require(page.index == index and books.lease(keys) is page.keys, "B7", f"{page} is named as page {index}")
            here = page.host is not None and (page.host.token_hash is not None or self._copied is not None)
            require(here if host == 0 else page.host is books.host(host), "B7", f"{page} lands in host block {host}")
            require(host == 0 or books.hosts[host].token_hash is None, "S9", f"{page} is written to a published block")
        for lease in books.leased:
            if lease.refs > lease.holders:
                incoming.kv.add(lease)
                books.held.hold(lease)
        request.incoming = incoming
        self._importing.add(request)

    def _before_end_import(self, args: Json) -> None:
        orphan = self.books.orphans.pop(args["request_id"], None)
        if orphan is None:
            request = self._live(args)
            require(request.incoming is not None and request.incoming.outside, "T2", "no import under way")
            assert request.incoming is not None
            request.incoming.outside, request.incoming.ok = False, args["ok"]
            return
        held: list[Held | None] = [*orphan.kv]
        for page in orphan.pages:
            held += [page.keys, page.host]
        for thing in held:
            if thing is not None:
                self.books.held.drop(thing)

    def _before_step_done(self, args: Json) -> None:
        steps, sequence = self.books.steps, args["sequence"]
        require(0 <= sequence <= steps.last, "B13", f"step {sequence} is done and was never planned")
        self._ranks.step_done(sequence)
        steps.in_flight.pop(sequence, None)

    def _behind_reset(self, args: Json, answer: None) -> None:
        self._rows_left |= {request.row for request in self.books.live.values()}
        self._begin(Steps(self.books.steps.last))

    def _behind_restart_rank(self, args: Json, answer: None) -> None:
        self._behind_reset(args, answer)
        self._epoch += 1

    def _before_apply(self, args: Json) -> None:
        report = args["report"]
        writer = (report["rank"], report["epoch"])
        self._ranks.heard(report)
        self._plans.mirrored(writer, report["mirrored"])
        over = {*report["completed"], *report["failed"]}
        for number in {*report["enqueued"], *over, *report["copied"]}:
            transfer = self.books.transfers.get(number)
            if transfer is None or transfer.sent is None or writer not in transfer.writers:
                continue
            copy = transfer.kind == "COPY"
            if number in report["failed"] and writer not in transfer.completed:
                transfer.failed = True
            if number in (report["copied"] if copy else over) or (copy and number in report["failed"]):
                transfer.completed.add(writer)
            if not copy and (number in report["enqueued"] or number in over):
                transfer.enqueued.add(writer)
            if transfer.kind == "SPILL" and transfer.enqueued == transfer.writers and transfer.lease is not None:
                self.books.held.drop(transfer.lease)
                transfer.lease = None

    # Events that are more than one entry in the books.

    def _move(self, number: int, index: int, state: str, kv: list[int]) -> None:
        move(self.books, self.books.page(number, index), state, self.books.lease(kv))

    def _pop(self, number: int, index: int) -> None:
        request, page = self.books.request(number), self.books.page(number, index)
        incoming = request.incoming
        outside = incoming is not None and incoming.outside and page in incoming.pages and request is self._leaving
        leaves = request.detached or (incoming is not None and page in incoming.pages)
        require(leaves, "B14", f"{page} is taken off its row")
        self.books.pop(number, index, keeps=outside)
        if request is not self._leaving:
            self._gone_if_empty(request)

    def _enter_transfer(self, transfer: Transfer) -> None:
        require(transfer.id > self._last_id, "B8", f"transfer {transfer.id} comes after {self._last_id}")
        self._last_id = transfer.id
        self.books.transfers[transfer.id] = transfer
        self.books.unsent.append(transfer)
        for host in transfer.hosts:
            self.books.held.hold(host)
        if transfer.lease is not None:
            self.books.held.hold(transfer.lease)

    def _writers(self, ranks: Iterable[int]) -> frozenset[tuple[int, int]]:
        return frozenset((rank, self._epoch) for rank in ranks)

    def _transfer(
        self, number: int, kind: str, request: int, index: int, host: int, blocks: list[int], moves: bool
    ) -> None:
        page, lease = self.books.page(request, index), self.books.lease(blocks)
        require(page.transfer is None, "B9", f"{page} has a transfer pending")
        require(
            page.host is not None and page.host.block == host, "B7", f"{page} is moved to or from host block {host}"
        )
        spills = kind == "SPILL"
        require(not spills or lease is page.kv, "B7", f"{page} is spilled from {blocks}")
        require(moves or (spills and self._config["eager_mirror"]), "S2", f"nothing moves {page}")
        assert page.host is not None
        writers = self._writers(self._config["writer_ranks" if spills else "ranks"])
        page.transfer = Transfer(number, kind, page, (page.host,), lease, tuple(blocks), moves, writers)
        self._enter_transfer(page.transfer)

    def _copy(self, number: int, request: int, index: int, source: int, destination: int) -> None:
        page, origin = self.books.page(request, index), self.books.host(source)
        require(page.host is not None and page.host.block == destination, "B7", f"{page} is copied to {destination}")
        require(origin is not None and origin.token_hash is not None, "S11", f"host block {source} is not published")
        assert page.host is not None and origin is not None
        writers = self._writers(self._config["ranks"])
        self._copied = Transfer(number, "COPY", page, (origin, page.host), None, (), True, writers)
        self._enter_transfer(self._copied)

    def _retire(self, number: int) -> None:
        transfer = self.books.transfers.pop(number, None)
        require(transfer is not None, "B8", f"transfer {number} is over and is not under way")
        assert transfer is not None
        self._ranks.retired(number)
        page = transfer.page
        if transfer.kind != "COPY" and page.transfer is transfer:
            page.transfer, page.ended = None, transfer
        if not transfer.done:
            self._given_up.add(transfer)  # unless it is set aside, which comes next
            return
        for host in transfer.hosts:
            self.books.held.drop(host)
        if transfer.lease is not None:
            self.books.held.drop(transfer.lease)
        if transfer.kind == "RESTORE" and not transfer.failed and page.clean and transfer.lease is not None:
            transfer.lease.rows_of = (transfer.hosts[0].block, transfer.hosts[0].life)

    def _aside(self, number: int) -> None:
        found = [transfer for transfer in self._given_up if transfer.id == number]
        require(found, "B8", f"transfer {number} is set aside and is not under way")
        [transfer] = found
        self._given_up.discard(transfer)
        limit = self.books.steps.last + 1 - self._config["overdue_after"]
        require(transfer.sent is not None and transfer.sent < limit, "S8", f"transfer {number} is not overdue")
        transfer.aside = transfer.failed = True
        self.books.aside += 1


def _is_over(incoming: Import | None) -> bool:
    """Whether nothing of an import is waited for: its pages have become valid, or have left."""
    if incoming is None:
        return True
    return not incoming.outside and all(page.gone or page.state != HOLE for page in incoming.pages)


def _nothing(*_: object) -> None:
    pass
