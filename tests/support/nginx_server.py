"""nginx as a sign-in proxy: it asks for a name and a password, and passes the name on in a header."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIG = """
daemon off;
user root;  # so that its workers read the folder if the tests run as root; ignored otherwise
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        auth_basic "pages";
        auth_basic_user_file {folder}/passwords;
        location / {{
            proxy_pass {upstream};
            proxy_bind {address};
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            # replaces a header of this name that the client sends
            proxy_set_header {header} $remote_user;
        }}
    }}
}}
"""


def nginx_program() -> str | None:
    """The program, on the path or where Debian puts it."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextmanager
def sign_in_proxy(
    folder: Path, upstream: str, header: str, passwords: dict[str, str], address: str
) -> Iterator[str]:
    """Run nginx in front of ``upstream``, to which it connects from ``address``; yields its own URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    lines = (f"{name}:{{PLAIN}}{password}\n" for name, password in passwords.items())
    (folder / "passwords").write_text("".join(lines), "utf-8")
    config = folder / "nginx.conf"
    config.write_text(
        CONFIG.format(folder=folder, port=port, upstream=upstream, header=header, address=address), "utf-8"
    )
    program = nginx_program()
    assert program is not None
    process = subprocess.Popen([program, "-e", folder / "error.log", "-c", config, "-p", folder])
    try:
        until = time.monotonic() + 20
        while True:
            assert process.poll() is None, (folder / "error.log").read_text()
            assert time.monotonic() < until
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
