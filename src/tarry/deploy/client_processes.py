"""Processes of client apps: a fork of this process for every message, and what becomes of one that dies.

Flower reports an exception of an app by itself. It does not report a process that ends without a word (os._exit, a
signal, no memory): its SuperNode notices that after about a minute. Here the end of a process is seen at once, and its
SuperNode gets an error in place of the reply, which says how the process ended.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

__all__ = ["ClientProcesses", "certificates", "guard_client_apps"]

log = logging.getLogger("tarry")
_LARGEST_HEAD = 32_000  # bytes of a message without content that are passed on; a pipe holds 65,536
_REPLIED = b"\x00replied"


class _Child(NamedTuple):
    address: str
    token: str
    pipe: int  # from which the head of its message is read, and whether it has replied


class ClientProcesses:
    """The forks of this process."""

    def __init__(self, root_certificates: str | None):
        self._root = root_certificates
        self._children: dict[int, _Child] = {}
        self._reporters: set[int] = set()

    def __len__(self) -> int:
        return len(self._children) + len(self._reporters)

    def start(self, address: str, token: str) -> None:
        """Fork a process for the task of this token."""
        parent, (read, write) = os.getpid(), os.pipe()
        pid = os.fork()
        if pid:
            os.close(write)
            os.set_blocking(read, False)
            self._children[pid] = _Child(address, token, read)
            return
        code = 1
        try:
            os.close(read)
            code = _run(address, token, self._root, parent, write)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(code)  # the child never returns into the parent's loop

    def reap(self) -> None:
        """See which processes have ended; report those that died before they had replied."""
        for pid in [p for p in self._reporters if os.waitpid(p, os.WNOHANG)[0]]:
            self._reporters.discard(pid)
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if not done:
                continue
            child = self._children.pop(pid)
            head = _read(child.pipe)
            if head and not head.endswith(_REPLIED):
                self._report(child, head, _how_it_ended(os.waitstatus_to_exitcode(status)))

    def _report(self, child: _Child, head: bytes, how: str) -> None:
        """Reply in the place of a process that died; in a process of its own, which may wait for the SuperNode."""
        log.warning("a process of the client app died: %s", how)
        pid = os.fork()
        if pid:
            self._reporters.add(pid)
            return
        try:
            _reply_error(child, head, how, self._root)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _flush()
            os._exit(0)


def certificates(path: str | None) -> bytes | None:
    """Return the content of a file of root certificates."""
    if path is None:
        return None
    with open(path, "rb") as f:
        return f.read()


def guard_client_apps() -> None:
    """Have every client app of this process raise an error where its handler returns no message, or ends the process.

    Flower takes a handler without a return value for a success, and its SuperNode then waits for a reply for ever. The
    server's request for a name and a key is answered for apps that do not know it.
    """
    from flwr.app import Message
    from flwr.clientapp import ClientApp

    call = ClientApp.__call__
    if getattr(call, "is_guarded", False):
        return

    def guarded(self: Any, message: Any, context: Any) -> Any:
        try:
            reply = (_own_answer(self, message) or call)(self, message, context)
        except SystemExit as e:
            raise RuntimeError(f"the client app ended its process (SystemExit: {e.code})") from e
        if not isinstance(reply, Message):
            raise TypeError(f"the handler of {message.metadata.message_type!r} returned {type(reply).__name__}")
        return reply

    guarded.is_guarded = True  # type: ignore[attr-defined]
    ClientApp.__call__ = guarded  # type: ignore[method-assign]


def _own_answer(app: Any, message: Any) -> Callable[[Any, Any, Any], Any] | None:
    """Return tarry's handler of a request for an identity, if the app has none."""
    if message.metadata.message_type != "query.hello" or "query.hello" in getattr(app, "_registered_funcs", {}):
        return None
    from .client_app import hello

    return lambda _, message, context: hello(message, context)


def _run(address: str, token: str, root: str | None, parent: int, pipe: int) -> int:
    """Handle one message in this process; return its exit status."""
    from flwr.supernode.runtime import run_clientapp as flower

    _draw_new_seeds()
    _note_progress(flower, pipe)
    try:
        flower.run_clientapp(
            runtime_api_address=address,
            token=token,
            insecure=root is None,
            certificates=certificates(root),
            parent_pid=parent,
            runtime_dependency_install=False,
        )
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else 1
    return 0


def _draw_new_seeds() -> None:
    """Seed the generators that a new Python process seeds by itself; forks would all begin with the same numbers."""
    import numpy as np

    random.seed()
    np.random.seed()  # noqa: NPY002 - the generator that apps use


def _note_progress(flower: Any, pipe: int) -> None:
    """Write the head of the message to the pipe when it is there, and a mark when it is answered."""
    try:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto

        pull, push = flower.pull_task_input, flower.push_message
    except (ImportError, AttributeError) as e:
        log.warning("with this version of Flower the death of a process is noticed late (%s)", e)
        return

    def pull_and_note(client: Any) -> Any:
        found = pull(client)
        head = message_to_proto(remove_content_from_message(found[0])).SerializeToString()
        if len(head) <= _LARGEST_HEAD:
            os.write(pipe, head)
        return found

    def push_and_note(*given: Any, **named: Any) -> None:
        push(*given, **named)
        os.write(pipe, _REPLIED)

    flower.pull_task_input, flower.push_message = pull_and_note, push_and_note


def _read(pipe: int) -> bytes:
    """Return what a process has written that has ended; other processes that it started may hold the pipe open."""
    try:
        return os.read(pipe, _LARGEST_HEAD + len(_REPLIED))
    except BlockingIOError:
        return b""
    finally:
        os.close(pipe)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with status {code} and without a reply"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"


def _reply_error(child: _Child, head: bytes, how: str, root: str | None) -> None:
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.common.serde import message_from_proto
    from flwr.proto.message_pb2 import Message as Head
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp as flower

    retry = make_simple_http_retry_invoker()
    retry.max_tries = 3
    client = RuntimeHttpClient.from_server_address(
        server_address=child.address,
        insecure=root is None,
        root_certificates=certificates(root),
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(child.token),
        ],
        retry_invoker=retry,
    )
    message = message_from_proto(Head.FromString(head))
    about: Any = SimpleNamespace(node_id=message.metadata.dst_node_id, run_id=message.metadata.run_id)
    reply = Message(Error(code=ErrorCode.CLIENT_APP_CRASHED, reason=how), reply_to=message)
    flower.push_message(client, reply, about)
    flower.push_task_output(client=client, context=None, sub_status=SubStatus.FAILED, details=how)
    client.close()


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
