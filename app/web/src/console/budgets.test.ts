import { expect, test } from "vitest";

import { amount, limitsFrom, limitsText, planText, mostText } from "./budgets.ts";

test("an empty field leaves the limit of the plan, and 0 is kept", () => {
  const fields = new FormData();
  fields.set("runsPerHour", " 20 ");
  fields.set("usdPerDay", "0");
  fields.set("tokensPerDay", "");
  expect(limitsFrom(fields)).toEqual({ runsPerHour: 20, usdPerDay: "0", tokensPerDay: null });
});

test("limits are told as sentences", () => {
  expect(limitsText({ runsPerHour: 10, usdPerDay: "2.5", tokensPerDay: 1000 })).toBe("10 runs an hour, $2.50 a day, 1,000 tokens a day");
  expect(limitsText({ runsPerHour: 0, usdPerDay: null, tokensPerDay: null })).toBe("No limit");
  expect(planText("pro", { runsPerHour: 1, usdPerDay: null, tokensPerDay: null })).toBe("Plan “pro”. This account has limits of its own.");
  const usd = { measure: "usd", most: "0.5" };
  expect([mostText({ ...usd, window: null }), mostText({ ...usd, window: 3600 }), mostText({ ...usd, window: 7200 })]).toEqual(["$0.50 in all", "$0.50 an hour", "$0.50 in 2 h"]);
  expect([amount("usd", "1.5"), amount("seconds", "90"), amount("runs", "1000")]).toEqual(["$1.50", "1 min 30 s", "1,000"]);
});
