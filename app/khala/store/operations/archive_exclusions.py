"""The tables that no archive of an account contains, and why."""

from collections.abc import Mapping

LEFT_OUT: Mapping[str, str] = {
    "detail_tokens": "keys that expire within the hour",
    "completion_requests": "requests that may be sent again for a day, to one server",
    "ephemeral_threads": "the expiry of threads; an import keeps what its owner has exported",
    "oidc_logins": "sign-ins that have not ended, with their secrets",
    "oauth_clients": "programs that have registered at one server",
    "oauth_grants": "secrets of programs, for one server",
    "mcp_accounts": "secrets of other services, sealed with the keys of one server",
    "mcp_authorizations": "connections of services that have begun, with their secrets",
    "mcp_clients": "secrets of one server as a client of other services",
    "objects": "the blob store's own records of objects, which `blobs` and `folder_files` name",
    "processes": "servers that run now",
    "presences": "people who are here now",
    "budget_stripes": "usage of limits that all users share",
    "agent_links": "keys of shared agents",
    "deleted_accounts": "accounts that are being deleted, which have no archive",
    "memory_extractions": "jobs of one server, and up to where they have read",
    "memory_proposals": "memories that nobody has accepted yet; they expire",
    "memory_settings": "choices for one server, with its own defaults",
    "guest_listings": "of threads without an account",
    "thread_deletions": "what restores a deleted thread for some seconds",
    "title_jobs": "jobs of one server",
    "thread_resets": "what resets have deleted, until it is purged",
    "stream_producers": "what the writers of streams have sent last, to one server",
    **dict.fromkeys(("stream_subscriptions", "stream_links"), "workers that one server wakes"),
    "schedules": "an imported copy would send the messages a second time",
    "stream_signing_keys": "a secret of the server",
    **dict.fromkeys(("webhook_endpoints", "webhook_deliveries"), "programs that one server notifies, and secrets"),
    "push_keys": "a secret of the server",
    **dict.fromkeys(("push_subscriptions", "push_messages"), "browsers that one server notifies"),
    "executors": "executors that run now",
    **dict.fromkeys(
        ("usage_rollup", "spend_days", "spend_user_days", "spend_windows", "tool_days", "blob_owners"),
        "the operator's own accounts",
    ),
    **dict.fromkeys(("search_segments", "search_queue", "search_walk"), "follow from the messages"),
}
"""Tables that no archive contains, and why."""
