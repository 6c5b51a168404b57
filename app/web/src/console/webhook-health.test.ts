import { expect, it } from "vitest";

import { webhookTile } from "./webhook-health.ts";

const HEALTHY = { waiting: 0, oldestSeconds: 0, failing: 0, disabled: 0 };

it("webhooks that are well show what waits for them", () => {
  expect(webhookTile(HEALTHY)).toEqual({ label: "Webhook deliveries", value: "0", note: "None waits", state: "", tone: "none" });
  expect(webhookTile({ ...HEALTHY, waiting: 1200, oldestSeconds: 42 })).toMatchObject({ value: "1,200", note: "Waiting, the oldest for 42 s", tone: "none" });
});

it("webhooks that fail or were disabled are named, the failing ones first", () => {
  expect(webhookTile({ ...HEALTHY, failing: 1, waiting: 3, oldestSeconds: 60 })).toEqual({ label: "Failing webhooks", value: "1", note: "3 deliveries wait", state: "failing", tone: "bad" });
  expect(webhookTile({ ...HEALTHY, failing: 2, disabled: 1, waiting: 1, oldestSeconds: 60 })).toMatchObject({ value: "2", note: "1 delivery waits · 1 more disabled" });
  expect(webhookTile({ ...HEALTHY, disabled: 2 })).toEqual({ label: "Disabled webhooks", value: "2", note: "Because they failed", state: "disabled", tone: "warn" });
});
