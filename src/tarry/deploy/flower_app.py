"""Protocols for Flower apps that do not use tarry: messages hold the tensors of the model's state dict.

FlowerAppProtocol   apps with handlers of messages: the records `arrays` and `config`; the reply has the same tensors
                    and `num-examples`
LegacyAppProtocol   apps with a client_fn (NumPyClient): the records of Flower's FitIns and FitRes, tensors by position
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import BadInput
from ..core.layout import Layout
from ..core.local_rule import LocalRule
from ..core.method import Method
from ..core.parts import PLACES
from ..core.tickets import Ticket
from .protocol import ClientReply, make_result, numpy_dtype, tensor_of
from .server.open_tickets import OpenTicket
from .wire import (
    Array,
    ArraySchema,
    EncodedArray,
    FieldValue,
    Rejected,
    ReplyMessage,
    Request,
    decode_arrays,
    parse_fields,
)

__all__ = ["FlowerAppProtocol", "LegacyAppProtocol", "StateDict", "check_flower_app"]

_LOSSES = ("train_loss", "train-loss", "loss")  # names under which apps report the loss of their training


class StateDict:
    """The state dict of a model: which of its tensors the flat vector holds, and the others as they were built.

    Tensors that share their memory (tied weights) are one stretch of the vector and are sent under each of their names.
    The counters of BatchNorm are sent as they were built, so that each training begins with the same ones, as in a
    simulation. Buffers that the state dict leaves out stay as they are.
    """

    def __init__(self, layout: Layout, module: nn.Module):
        state = module.state_dict(keep_vars=True)
        if strange := [name for name, t in state.items() if not isinstance(t, Tensor)]:
            raise BadInput(f"the model's state dict has {strange[0]!r}, which is no tensor; it cannot be sent")
        held = {block.name for block in layout.blocks}
        owners = {id(t): n for n, t in (*module.named_parameters(), *module.named_buffers()) if n in held}
        self.layout, self.names = layout, list(state)
        self.block = {name: owners[id(t)] for name, t in state.items() if id(t) in owners}
        self._fixed = {name: t.detach().cpu().numpy() for name, t in state.items() if name not in self.block}
        self.shapes = {name: tuple(t.shape) for name, t in state.items()}
        self.dtypes = {name: numpy_dtype(t.dtype) for name, t in state.items()}

    def arrays(self, weights: Tensor) -> dict[str, Array]:
        """Return the tensors of these weights, by name."""
        views = {k: v.numpy() for k, v in self.layout.views(weights.detach().cpu()).items()}
        return {name: views[self.block[name]] if name in self.block else self._fixed[name] for name in self.names}

    def schema(self, dtype: torch.dtype) -> ArraySchema:
        """Return what a reply may hold: the tensors of the vector; further names and fixed tensors are not read."""
        required = {b.name: b.shape for b in self.layout.blocks if b.name in self.block}
        others = [name for name in self.names if name not in required]
        sizes = {n: int(np.prod(self.shapes[n], dtype=np.int64)) * self.dtypes[n].itemsize for n in others}
        return ArraySchema(required, numpy_dtype(dtype), ignored=sizes)

    def delta(self, arrays: Mapping[str, Array], sent: Tensor) -> Tensor:
        """Return the difference to the weights sent; it is 0 for buffers that the arrays leave out."""
        delta, sent = torch.zeros_like(sent, device="cpu"), sent.cpu()
        for b in self.layout.blocks:
            if b.name in arrays:
                torch.sub(tensor_of(arrays[b.name]), sent[b.at].view(b.shape), out=delta[b.at].view(b.shape))
        return delta


class FlowerAppProtocol:
    """For apps with handlers of messages (`@app.train()`)."""

    has_tokens = False

    def __init__(
        self, state: StateDict, *, dtype: torch.dtype, lr: Callable[[Ticket], float], has_identities: bool = False
    ):
        self._state, self._schema, self._lr = state, state.schema(dtype), lr
        self.has_identities = has_identities  # its nodes run tarry.deploy.fork_server, which answers for the app

    def encode_ticket(
        self,
        ticket: Ticket,
        open_ticket: OpenTicket,  # noqa: ARG002
        *,
        node: int,
        memory_visit: int,  # noqa: ARG002
        ttl: float,
    ) -> Request:
        return self._request(node, "train", self._fields(ticket), ticket.sent, ttl)

    def encode_eval(self, weights: Tensor, *, node: int, client: int, ttl: float) -> Request:  # noqa: ARG002
        return self._request(node, "evaluate", {}, weights, ttl)

    def _fields(self, ticket: Ticket) -> dict[str, FieldValue]:
        return {"server-round": ticket.version + 1, "lr": self._lr(ticket)}

    def _request(self, node: int, kind: str, fields: Mapping[str, FieldValue], weights: Tensor, ttl: float) -> Request:
        return Request(node, kind, fields, self._state.arrays(weights), ttl)

    def decode_reply(self, reply: ReplyMessage, ticket: Ticket) -> ClientReply:
        n = parse_fields(reply.fields, num_examples=int)["num_examples"]
        delta = self._state.delta(decode_arrays(reply.arrays, self._schema), ticket.sent)
        result = make_result(delta, n, 1, 0.0, {})
        losses = [v for name in _LOSSES if isinstance(v := reply.fields.get(name), float)]
        return ClientReply(result._replace(loss=losses[0] if losses else nan))


class LegacyAppProtocol(FlowerAppProtocol):
    """For apps with a client_fn: tensors have positions in place of names, and replies do not say shapes and types."""

    def _fields(self, ticket: Ticket) -> dict[str, FieldValue]:
        return {"server_round": ticket.version + 1, "lr": self._lr(ticket)}

    def _request(self, node: int, kind: str, fields: Mapping[str, FieldValue], weights: Tensor, ttl: float) -> Request:
        arrays = {str(i): a for i, a in enumerate(self._state.arrays(weights).values())}
        ins = "fitins" if kind == "train" else "evaluateins"
        return Request(node, kind, fields, arrays, ttl, (f"{ins}.config", f"{ins}.parameters"))

    def decode_reply(self, reply: ReplyMessage, ticket: Ticket) -> ClientReply:
        code, text = reply.fields.get("code", 0), reply.fields.get("message", "")
        if code != 0:
            raise Rejected(f"its fit has status {code!s:.20}: {text!s:.200}")
        fields = {**reply.fields, "num-examples": reply.fields.get("num_examples")}
        return super().decode_reply(reply._replace(fields=fields, arrays=self._named(reply.arrays)), ticket)

    def _named(self, arrays: Mapping[str, EncodedArray]) -> dict[str, EncodedArray]:
        """Return the arrays by the names of their tensors; the file of each says its shape and type, and is checked."""
        names, state = self._state.names, self._state
        if set(arrays) != {str(i) for i in range(len(names))}:
            raise Rejected(f"{len(arrays)} tensors; the model's state dict has {len(names)}")
        return {
            name: arrays[str(i)]._replace(dtype=state.dtypes[name].name, shape=state.shapes[name])
            for i, name in enumerate(names)
        }


def check_flower_app(method: Method, label: str) -> None:
    """Raise BadInput if the method needs more of its clients than weights and a number of examples."""
    problems, rule = [], method.local
    if type(rule) is not LocalRule:
        problems.append(f"its clients train by a rule of their own ({type(rule).__name__})")
    reads = frozenset[str]().union(*(getattr(method, p).required_extras for p in PLACES))
    must_use = frozenset[str]().union(*(getattr(method, p).must_be_used for p in PLACES))
    for what, names in (("send back", reads | rule.uploads), ("use", must_use | rule.required_payload)):
        if names:
            problems.append(f"its clients must {what} {', '.join(sorted(names))}")
    if problems:
        raise BadInput(
            f"--method {label}: {'; '.join(problems)}, and a plain Flower app does not do this: name "
            "tarry.deploy.client_app:app as clientapp, or take a method whose clients just train (fedasync, fedbuff, "
            "ca2fl, fadas, mifa, orthofl, fedecho ...)"
        )
