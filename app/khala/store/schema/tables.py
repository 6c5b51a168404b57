"""All tables, in one metadata. The migrations create the same schema. A test compares both."""

from khala.store.schema.account_tables import (
    api_tokens,
    audit,
    deleted_accounts,
    identities,
    oauth_clients,
    oauth_grants,
    oidc_logins,
    passwords,
    sessions,
    users,
)
from khala.store.schema.agent_tables import agent_links, agents
from khala.store.schema.columns import metadata
from khala.store.schema.memory_tables import memories, memory_extractions, memory_proposals, memory_settings
from khala.store.schema.plan_tables import plan_events, plan_steps, plans
from khala.store.schema.run_tables import (
    approvals,
    budget_stripes,
    budgets,
    completion_requests,
    detail_tokens,
    message_parts,
    receipts,
    runs,
    usage_ledger,
    usage_receipts,
)
from khala.store.schema.schedule_tables import schedules
from khala.store.schema.search_tables import search_queue, search_segments, search_walk
from khala.store.schema.sharing_tables import invitations, memberships, share_links
from khala.store.schema.stream_tables import (
    stream_chunks,
    stream_links,
    stream_producers,
    stream_signing_keys,
    stream_subscriptions,
    streams,
)
from khala.store.schema.thread_tables import (
    ephemeral_threads,
    listings,
    messages,
    presences,
    processes,
    thread_resets,
    threads,
)
from khala.store.schema.webhook_tables import webhook_deliveries, webhook_endpoints
from khala.store.schema.workspace_tables import blobs, files, objects, todos, user_tools

__all__ = [
    "agent_links",
    "agents",
    "api_tokens",
    "approvals",
    "audit",
    "blobs",
    "budget_stripes",
    "budgets",
    "completion_requests",
    "deleted_accounts",
    "detail_tokens",
    "ephemeral_threads",
    "files",
    "identities",
    "invitations",
    "listings",
    "memberships",
    "memories",
    "memory_extractions",
    "memory_proposals",
    "memory_settings",
    "message_parts",
    "messages",
    "metadata",
    "oauth_clients",
    "oauth_grants",
    "objects",
    "oidc_logins",
    "passwords",
    "plan_events",
    "plan_steps",
    "plans",
    "presences",
    "processes",
    "receipts",
    "runs",
    "schedules",
    "search_queue",
    "search_segments",
    "search_walk",
    "sessions",
    "share_links",
    "stream_chunks",
    "stream_links",
    "stream_producers",
    "stream_signing_keys",
    "stream_subscriptions",
    "streams",
    "thread_resets",
    "threads",
    "todos",
    "usage_ledger",
    "usage_receipts",
    "user_tools",
    "users",
    "webhook_deliveries",
    "webhook_endpoints",
]
