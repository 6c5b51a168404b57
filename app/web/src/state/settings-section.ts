// The sections of the settings, and the address that opens one: `?settings=memory`.

const SETTINGS_SECTIONS = ["general", "answers", "memory", "notifications", "services", "account", "usage", "access", "data"] as const;
export type SettingsSection = (typeof SETTINGS_SECTIONS)[number];
/** Sections that guests do not have. */
const OF_ACCOUNTS: readonly SettingsSection[] = ["usage", "access"];

/** The sections that a person has. */
export function settingsSections(isSignedIn: boolean): readonly SettingsSection[] {
  return SETTINGS_SECTIONS.filter((section) => isSignedIn || !OF_ACCOUNTS.includes(section));
}

/** The section in the query of an address; `general` for an unknown one, null if the query asks for no settings. */
export function parseSettingsSection(search: string): SettingsSection | null {
  const name = new URLSearchParams(search).get("settings");
  return name === null ? null : (SETTINGS_SECTIONS.find((section) => section === name) ?? "general");
}
