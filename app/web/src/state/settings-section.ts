// The sections of the settings, and the address that opens one: `?settings=memory`.

export const SETTINGS_SECTIONS = ["general", "answers", "memory", "notifications", "services", "account", "data"] as const;
export type SettingsSection = (typeof SETTINGS_SECTIONS)[number];

/** The section in the query of an address; `general` for an unknown one, null if the query asks for no settings. */
export function parseSettingsSection(search: string): SettingsSection | null {
  const name = new URLSearchParams(search).get("settings");
  return name === null ? null : (SETTINGS_SECTIONS.find((section) => section === name) ?? "general");
}
