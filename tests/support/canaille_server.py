"""Canaille, an OpenID Connect provider, with one user and a client; run by a Python that has it.

``python canaille_server.py PORT PUBLIC_URL``: PUBLIC_URL is that of the pages. Nothing is stored.
"""

from __future__ import annotations

import datetime
import sys

USER, PASSWORD = "olga", "correct horse battery"
CLIENT, SECRET = "labels", "only for this test"


def main(port: int, public_url: str) -> None:
    from canaille import create_app
    from canaille.app import models
    from canaille.backends import Backend
    from werkzeug.serving import run_simple

    issuer = f"http://127.0.0.1:{port}"
    app = create_app(
        {
            "SECRET_KEY": "only for this test",
            "SERVER_NAME": f"127.0.0.1:{port}",
            "PREFERRED_URL_SCHEME": "http",
            "CANAILLE": {
                "DATABASE": "memory",
                "CAPTCHA_ENABLED": False,
                "JAVASCRIPT": False,
                "SMTP": None,
                "LOGGING": None,
            },
            "CANAILLE_OIDC": {"ISSUER": issuer},
        }
    )
    with app.app_context():
        now = datetime.datetime.now(datetime.UTC)
        user = models.User(
            user_name=USER,
            formatted_name="Olga P",
            family_name="P",
            display_name="Olga P",
            emails=["olga@example.com"],
            password=PASSWORD,
        )
        Backend.instance.save(user)
        client = models.Client(
            client_id=CLIENT,
            client_secret=SECRET,
            client_id_issued_at=now,
            client_name="Labels",
            client_uri=public_url,
            contacts=["olga@example.com"],
            redirect_uris=[f"{public_url}/sign-in/callback"],
            post_logout_redirect_uris=[f"{public_url}/sign-in"],
            grant_types=["authorization_code"],
            response_types=["code"],
            scope=["openid", "profile", "email"],
            token_endpoint_auth_method="client_secret_basic",
        )
        Backend.instance.save(client)
        client.audience = [client]
        Backend.instance.save(client)
    run_simple("127.0.0.1", port, app, threaded=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
