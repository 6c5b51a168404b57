import { expect, test } from "vitest";

import { parseSettingsSection, settingsSections } from "./settings-section.ts";

test("an address opens the section that it names, and the first one for a name that there is not", () => {
  expect(parseSettingsSection("?settings=memory")).toBe("memory");
  expect([parseSettingsSection("?settings="), parseSettingsSection("?settings=toString")]).toEqual(["general", "general"]);
  expect([parseSettingsSection(""), parseSettingsSection("?signin=x")]).toEqual([null, null]);
});

test("guests have no sections about an account's usage, apps and tokens", () => {
  expect(settingsSections(true)).toEqual(["general", "answers", "memory", "notifications", "services", "account", "usage", "access", "data"]);
  expect(settingsSections(false)).toEqual(["general", "answers", "memory", "notifications", "services", "account", "data"]);
});
