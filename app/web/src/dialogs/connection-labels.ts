// What the settings say of connected services.

import type { AccountConnection } from "@khala/client";

import { m } from "../i18n/messages.ts";
import type { ConnectionOutcome } from "../state/connection-outcome.ts";
import { formatDateTime, joinParts } from "../state/format.ts";

/** The state of one service. */
export function connectionLabel({ state, tools, needsScope, connectedAt, description }: AccountConnection): string {
  switch (state) {
    case "connected": {
      const since = connectedAt === null ? m.service_is_connected() : m.connected_since({ time: formatDateTime(connectedAt) });
      return joinParts([since, tools > 0 && m.service_tools({ count: tools }), needsScope && m.service_needs_more_permissions()]);
    }
    case "expired":
      return m.service_access_has_ended();
    case "removed":
      return m.service_is_no_longer_offered();
    case "disconnected":
      return description || m.not_connected();
  }
}

/** What came of connecting a service. */
export function outcomeLabel({ code, service }: ConnectionOutcome): string {
  if (code === "unauthorized") return m.sign_in_to_connect_a_service();
  if (service === null) return m.the_service_was_not_connected();
  switch (code) {
    case "connected":
      return m.name_is_connected({ name: service });
    case "denied":
      return m.access_to_name_was_not_allowed({ name: service });
    case "expired":
      return m.connecting_name_has_expired({ name: service });
    default:
      return m.couldnt_connect_name({ name: service });
  }
}
