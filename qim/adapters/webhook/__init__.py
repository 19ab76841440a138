"""The moderation port by HTTP: asked before a message is taken, told after it was committed (docs/webhooks.md).

Nothing outside this package imports the HTTP client. ``Webhooks`` is the port; what it sends is in payload.py, what makes
it trustworthy in signing.py.
"""

from qim.adapters.webhook.hooks import Webhooks
from qim.adapters.webhook.settings import WebhookSettings, settings_from

__all__ = ["WebhookSettings", "Webhooks", "settings_from"]
