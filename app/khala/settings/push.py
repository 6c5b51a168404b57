"""Settings of push notifications."""

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from khala.settings.fields import SettingGroup, ValueKind, setting
from khala.settings.server import HostNames

PUSH_SERVICES = (
    "fcm.googleapis.com",
    "*.push.services.mozilla.com",
    "web.push.apple.com",
    "*.notify.windows.com",
)


def _contact(value: object) -> object:
    if isinstance(value, str) and not value.startswith(("mailto:", "https://")):
        raise ValueError("must begin with mailto: or https://.")
    return value


Contact: TypeAlias = Annotated[str, BeforeValidator(_contact), ValueKind("address")]


class PushSettings(SettingGroup):
    """Notifications that browsers show while the page is closed."""

    hosts: HostNames = setting(
        "KHALA_PUSH_HOSTS",
        PUSH_SERVICES,
        "Push services of browsers that notifications are sent to, as `fcm.googleapis.com,*.example.com`; `*` for any, "
        "and empty to turn notifications off.",
        blank_is_value=True,
    )
    contact: Contact | None = setting(
        "KHALA_PUSH_CONTACT",
        None,
        "Address under which push services can reach the operator, as `mailto:ops@example.com`. Apple's requires one.",
        shown_default="`KHALA_PUBLIC_URL`, if it is an https address",
    )
