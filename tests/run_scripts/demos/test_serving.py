"""Where the page is served, and what is said where it cannot be."""

import socket

import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos.page import check_address, launch


@pytest.fixture
def taken():
    """A port that another program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def served(demo_checkpoint, monkeypatch):
    """`served(**options)`: `launch` of a small checkpoint."""
    pytest.importorskip("gradio", reason="the demo needs the extra demo")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    opened = []

    def serve(**options):
        opened.append(launch(demo_checkpoint("GMLP", "fill-mask"), **options))
        return opened[-1]

    yield serve
    for page in opened:
        page.close(verbose=False)


def refused(function, *arguments, **options):
    with pytest.raises(UserError) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert message.startswith("error: ") and "\n" not in message
    assert not [word for word in ("share=", "launch()", "server_port", "GRADIO_") if word in message]
    return message


def test_a_port_in_use_is_named(taken):
    assert f"--port {taken} is in use: give another one" in refused(check_address, "127.0.0.1", taken)
    assert f"--port {taken} is in use" in refused(check_address, "0.0.0.0", taken)
    check_address("127.0.0.1", None)


@pytest.mark.parametrize("host", ["999.1.1.1", "192.0.2.1", "a" * 64, "2001:db8::1"])
def test_a_host_that_is_not_this_machine_is_named(host):
    """The second and the last are addresses for documentation (RFC 5737, RFC 3849)."""
    message = refused(check_address, host, None)
    assert message.startswith(f"error: --host '{host}' cannot be listened on (")
    assert "give an address of this machine, 127.0.0.1" in message


def test_a_port_that_only_the_administrator_may_use_is_named(monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert "--port 80 is not for this user: give one from 1024 on" in refused(check_address, "127.0.0.1", 80)


def test_the_host_of_the_environment_is_checked(monkeypatch):
    monkeypatch.setenv("GRADIO_SERVER_NAME", "999.1.1.1")
    assert "'999.1.1.1' cannot be listened on" in refused(check_address, None, None)


def test_the_address_alone_is_printed(served, monkeypatch, capsys):
    import gradio

    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda page: None)
    page = served(host="127.0.0.1")
    assert capsys.readouterr().out == f"The page is at {page.local_url}\n"
    with socket.create_connection(("127.0.0.1", page.server_port), timeout=5):
        assert page.local_url == f"http://127.0.0.1:{page.server_port}/"


def test_the_public_address_is_printed_or_its_lack_refused(served, monkeypatch, capsys):
    import gradio

    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda page: None)
    monkeypatch.setattr("gradio.networking.setup_tunnel", lambda **options: "https://abc.example.org")
    page = served(host="127.0.0.1", share=True)
    expected = f"The page is at {page.local_url}\nIts public address is https://abc.example.org\n"
    assert capsys.readouterr().out == expected

    def fail(**options):
        raise ConnectionError("no way")

    monkeypatch.setattr("gradio.networking.setup_tunnel", fail)
    message = refused(served, host="127.0.0.1", share=True)
    assert "there is no public address: leave --share out. Could not create share link." in message
    assert capsys.readouterr().out == ""


def test_a_page_behind_a_proxy_is_said_and_closed(served, monkeypatch):
    monkeypatch.setattr("gradio.networking.url_ok", lambda url: False)
    message = refused(served, host="127.0.0.1")
    assert "cannot be reached from this machine itself" in message and "NO_PROXY" in message and "--host" in message


def test_what_gradio_refuses_later_is_said(served, monkeypatch):
    def fail(**options):
        raise OSError("Cannot find empty port in range: 7860-7959. Pass the `server_port` parameter to `launch()`.")

    monkeypatch.setattr("gradio.http_server.start_server", fail)
    assert "no port from 7860 on is free: give another --port." in refused(served, host="127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert f"--port {port} is in use" in refused(served, host="127.0.0.1", port=port)
