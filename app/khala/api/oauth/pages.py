"""The pages that people see when an MCP client asks for access: the consent form, and errors.

They have no scripts. All text of clients is escaped.
"""

import base64
import hashlib
from collections.abc import Mapping
from html import escape
from urllib.parse import urlsplit

from litestar import MediaType, Response

from khala.domain.oauth import OAuthClient, OAuthScope, is_on_this_computer, redirect_host

STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; }
main { max-width: 26rem; padding: 1.5rem; overflow-wrap: anywhere; }
h1 { font-size: 1.25rem; line-height: 1.3; }
.note { padding: 0.6rem 0.8rem; border: 1px solid; border-radius: 0.4rem; }
.fine { font-size: 0.875rem; opacity: 0.8; }
label { display: block; margin: 0.5rem 0; }
.buttons { display: flex; gap: 0.75rem; justify-content: flex-end; margin-top: 1.25rem; }
button { font: inherit; padding: 0.5rem 1.1rem; border-radius: 0.4rem; border: 1px solid; cursor: pointer; }
button.primary { background: #1f5fd6; border-color: #1f5fd6; color: #fff; }
"""
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


class ConsentView:
    """The contents of the consent page. The form sends `fields` back."""

    def __init__(
        self,
        client: OAuthClient,
        *,
        redirect_uri: str,
        resource: str,
        scopes: tuple[OAuthScope, ...],
        account: str,
        fields: Mapping[str, str],
    ) -> None:
        self.client = client
        self.redirect_uri = redirect_uri
        self.resource = resource
        self.may_write = "khala:write" in scopes
        self.account = account
        self.fields = fields


def consent_page(view: ConsentView) -> Response[str]:
    """Return the form on which a person allows or denies a client access."""
    name, host = escape(view.client.name), escape(redirect_host(view.redirect_uri))
    hidden = "".join(
        f'<input type="hidden" name="{escape(key)}" value="{escape(value)}">' for key, value in view.fields.items()
    )
    write = (
        '<label><input type="checkbox" name="write" value="1" checked> '
        "Make changes: write files, store memories, and use every other tool of your account</label>"
        if view.may_write
        else ""
    )
    return _page(
        f"Allow {name}?",
        f"""<h1>{name} asks for access to your Khala account</h1>
<p>You are signed in as <strong>{escape(view.account)}</strong>.</p>
<p class="note">{_publisher(view.client)} {_destination(view.redirect_uri, host)}
The app chose its name itself. Allow access only if you have just started this.</p>
<form method="post" action="/oauth/authorize">{hidden}
<p>At <strong>{escape(view.resource)}</strong> it may:</p>
<label><input type="checkbox" checked disabled> Read: your files and memories, and attachments of your chats</label>
{write}
<p class="fine">You can end its access at any time in your account.</p>
<p class="buttons"><button name="decision" value="deny">Deny</button>
<button class="primary" name="decision" value="allow">Allow</button></p>
</form>""",
        # Browsers check the redirect that follows the form, too.
        form_action=f"'self' {_source(view.redirect_uri)}",
    )


def error_page(message: str, *, status: int = 400, back: tuple[str, str] | None = None) -> Response[str]:
    """Return a page with an error. `back` is the URL and the host of a client that may be told, by a link.

    There is no automatic redirect: anybody can register a client, so that it would send people anywhere.
    """
    link = ""
    if back is not None:
        url, host = map(escape, back)
        link = f'<p><a href="{url}" rel="noreferrer">Return to {host}</a></p>'
    return _page("Access not possible", f"<h1>Access not possible</h1><p>{escape(message)}</p>{link}", status=status)


def _publisher(client: OAuthClient) -> str:
    """Say whose the app is, which is known only if its id is a URL."""
    host = urlsplit(client.id).netloc
    return f"The app belongs to <strong>{escape(host)}</strong>." if host else "Khala does not know whose app this is."


def _destination(redirect_uri: str, host: str) -> str:
    if is_on_this_computer(redirect_uri):
        return f"The access goes to a program on this computer (<strong>{host}</strong>)."
    return f"The access goes to <strong>{host}</strong>."


def _source(redirect_uri: str) -> str:
    """Return the CSP source of the redirect: its origin; or the scheme of an app, and of an IPv6 address."""
    split = urlsplit(redirect_uri)
    is_host = split.scheme in ("http", "https") and "[" not in split.netloc
    return f"{split.scheme}://{split.netloc}" if is_host else f"{split.scheme}:"


def _page(title: str, body: str, *, status: int = 200, form_action: str = "'none'") -> Response[str]:
    policy = (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; form-action {form_action}; "
        "base-uri 'none'; frame-ancestors 'none'"
    )
    html = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style><main>{body}</main></html>"
    )
    headers = {
        "Content-Security-Policy": policy,
        # So that the form's request has an Origin.
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    return Response(html, status_code=status, media_type=MediaType.HTML, headers=headers)
