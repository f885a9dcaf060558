"""tvmconvgrad rpc"""

from __future__ import annotations

import importlib.util
import ipaddress
import re
from collections.abc import Callable
from typing import Any

import rich_click as click

from tvmconvgrad.cli.common.errors import UserError
from tvmconvgrad.cli.common.help import Group

_INSTALL = 'pip install "tvmconvgrad[tune]"'
_LOOPBACK = "127.0.0.1"
_host = click.option("--host", default=_LOOPBACK, show_default=True, help="Address to listen on.")
_expose = click.option("--expose", is_flag=True, help="Allow an address that other machines can reach.")


@click.group(cls=Group)
def rpc() -> None:
    """Start TVM's RPC tracker and servers, on which `tvmconvgrad tune --rpc` measures.

    TVM's RPC lets anyone who can connect run code as you, and encrypts nothing. Tracker and servers listen on this
    machine's loopback address; any other address needs --expose.

    \b
    tvmconvgrad rpc tracker --port 9190
    tvmconvgrad rpc server --tracker 127.0.0.1:9190 --key zen
    tvmconvgrad tune resnet_50 --rpc 127.0.0.1:9190 --key zen
    """


@rpc.command()
@_host
@click.option("--port", default=9190, show_default=True, type=click.IntRange(1, 65535), help="First port to try.")
@_expose
def tracker(host: str, port: int, expose: bool) -> None:
    """Start a tracker, which tells searches where servers are."""
    _check(host, expose)
    if importlib.util.find_spec("tornado") is None:
        raise UserError(f"TVM's tracker needs tornado: {_INSTALL}")
    from tvmconvgrad.tuning.remote.rpc_server import start_tracker, wait_for  # imports TVM

    state = _started(lambda: start_tracker(host, port))
    click.echo(f"tracker at {host}:{state.port}")
    wait_for(state)


@rpc.command()
@_host
@click.option("--port", default=9090, show_default=True, type=click.IntRange(1, 65535), help="First port to try.")
@click.option("--tracker", required=True, metavar="HOST:PORT", help="Address of the tracker.")
@click.option("--key", required=True, help="Name of this kind of machine; equal machines have the same key.")
@_expose
def server(host: str, port: int, tracker: str, key: str, expose: bool) -> None:
    """Start a server, which measures what searches send."""
    _check(host, expose)
    where = parse_address("--tracker", tracker)
    from tvmconvgrad.tuning.remote.rpc_server import start_server, wait_for  # imports TVM

    state = _started(lambda: start_server(host, port, where, key))
    click.echo(f"server at {host}:{state.port}")
    wait_for(state)
    raise UserError(f"{tracker} is no tracker, or has gone wrong")


def _started(start: Callable[[], Any]) -> Any:
    try:
        return start()
    except (OSError, ValueError) as reason:
        raise UserError(f"--host: cannot listen: {reason}") from reason


def parse_address(option: str, text: str) -> tuple[str, int]:
    """HOST:PORT as its parts. UserError."""
    match = re.fullmatch(r"\[?([^\s\[\]]+?)\]?:(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UserError(f"{option}: {text!r}, expected HOST:PORT, for example 127.0.0.1:9190")
    return match[1], int(match[2])


def _check(host: str, expose: bool) -> None:
    """Refuse what other machines reach, or warn where that is wanted."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if local:
        return
    danger = "anyone who reaches it can run code as you"
    if not expose:
        raise UserError(f"--host: {host} is no loopback address, and {danger}: --expose allows it")
    click.echo(f"Warning: {host} can be reached from other machines, and {danger}.", err=True)
