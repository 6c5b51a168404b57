import { expect, it } from "vitest";

import { webhookTile } from "./webhook-health.ts";

const HEALTHY = { waiting: 0, oldestSeconds: 0, failing: 0, disabled: 0 };

it("webhooks that are well show what waits for them", () => {
  expect(webhookTile(HEALTHY)).toEqual({ label: "Webhook deliveries", value: "0", note: "None waits", state: "", tone: "none" });
  expect(webhookTile({ ...HEALTHY, waiting: 1200, oldestSeconds: 42 })).toMatchObject({ value: "1,200", note: "Waiting, the oldest for 42 s", tone: "none" });
});

it("webhooks that fail or were disabled are named, the failing ones first", () => {
  expect(webhookTile({ ...HEALTHY, failing: 1, waiting: 3, oldestSeconds: 60 })).toEqual({ label: "Failing webhooks", value: "1", note: "3 deliveries wait, the oldest for 1 min", state: "failing", tone: "bad" });
  expect(webhookTile({ ...HEALTHY, failing: 2, disabled: 1, waiting: 1, oldestSeconds: 60 })).toMatchObject({ value: "2", note: "1 delivery has waited for 1 min · 1 more disabled by Khala" });
  expect(webhookTile({ ...HEALTHY, disabled: 2 })).toEqual({ label: "Webhooks disabled by Khala", value: "2", note: "No delivery waits", state: "disabled", tone: "warn" });
  expect(webhookTile({ ...HEALTHY, disabled: 1, waiting: 1200, oldestSeconds: 7200 }), "one that is disabled does not hide what waits").toMatchObject({ value: "1", note: "1,200 deliveries wait, the oldest for 2 h" });
});
