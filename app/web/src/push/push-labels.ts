// What the page says about the outcome of turning notifications on.

import { m } from "../i18n/messages.ts";
import type { PushResult } from "./push-subscription.ts";

/** Why notifications are not on; "" if they are. */
export function pushProblem(result: PushResult): string {
  switch (result) {
    case "on":
      return "";
    case "refused":
      return m.notifications_refused();
    case "off":
      return m.notifications_off_on_server();
    case "failed":
      return m.notifications_not_stored();
  }
}
