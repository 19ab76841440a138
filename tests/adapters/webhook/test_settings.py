"""What the hooks' settings refuse, and what they make of what they take."""

import base64

import pytest

from qim.adapters.start_refused import StartRefused
from qim.adapters.webhook import WebhookSettings, settings_from
from qim.adapters.webhook.signing import headers, secret_of
from qim.core.ports.moderation import FailPolicy

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()


def test_nothing_said_is_no_hook() -> None:
    settings = settings_from({})
    assert settings == WebhookSettings()
    assert (settings.before_send, settings.after_send) == (FailPolicy.OFF, False)


def test_all_said() -> None:
    settings = settings_from(
        {
            "QIM_WEBHOOK_BEFORE_SEND_URL": "http://127.0.0.1:1/a?b=c",
            "QIM_WEBHOOK_AFTER_SEND_URL": "https://[::1]/",
            "QIM_WEBHOOK_FAIL_POLICY": "closed",
            "QIM_WEBHOOK_SECRET": f"{SECRET} {SECRET}",
            "QIM_WEBHOOK_TIMEOUT_MS": "250",
            "QIM_WEBHOOK_TLS_CA": "/ca.pem",
        }
    )
    assert (settings.before_send, settings.after_send) == (FailPolicy.CLOSED, True)
    assert (settings.secrets, settings.timeout_ms) == ((KEY, KEY), 250)
    assert settings_from({"QIM_WEBHOOK_BEFORE_SEND_URL": "http://a"}).before_send is FailPolicy.OPEN


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("BEFORE_SEND_URL", "ftp://a", "webhook_url"),
        ("BEFORE_SEND_URL", "https://", "webhook_url"),
        ("AFTER_SEND_URL", "localhost:80", "webhook_url"),
        ("AFTER_SEND_URL", "http://a:x/", "webhook_url"),
        ("FAIL_POLICY", "Open", "webhook_fail_policy"),
        ("FAIL_POLICY", "off", "webhook_fail_policy"),
        ("SECRET", base64.b64encode(KEY).decode(), "webhook_secret"),
        ("SECRET", "whsec_", "webhook_secret"),
        ("SECRET", "whsec_%%%%", "webhook_secret"),
        ("SECRET", "whsec_" + base64.b64encode(KEY[:23]).decode(), "webhook_secret"),
        ("SECRET", "whsec_" + base64.b64encode(KEY * 3).decode(), "webhook_secret"),
        ("SECRET", f"{SECRET} hunter2", "webhook_secret"),
        ("TIMEOUT_MS", "0", "webhook_timeout"),
        ("TIMEOUT_MS", "8001", "webhook_timeout"),
        ("TIMEOUT_MS", "2s", "webhook_timeout"),
    ],
)
def test_what_is_refused(name: str, value: str, code: str) -> None:
    with pytest.raises(StartRefused) as caught:
        settings_from({f"QIM_WEBHOOK_{name}": value})
    assert (caught.value.code, caught.value.what) == (code, f"QIM_WEBHOOK_{name}")
    assert f"export QIM_WEBHOOK_{name}=" in str(caught.value)
    if name == "SECRET" and value != "whsec_":
        assert value not in str(caught.value), "no secret in a message"


def test_the_specification_s_own_example() -> None:
    """Standard Webhooks' reference libraries all carry this one."""
    key = secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert key is not None
    told = headers((key,), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert told == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert "webhook-signature" not in headers((), "msg_1", 1, b"")
    both = headers((KEY, key), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert both["webhook-signature"].split(" ")[1] == told["webhook-signature"]
