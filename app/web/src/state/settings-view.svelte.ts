// The section of the settings that is shown, and how the settings are opened.

import { receiveOutcome } from "./connection-outcome.ts";
import type { PageModel } from "./page-model.ts";
import { parseSettingsSection, type SettingsSection } from "./settings-section.ts";

class SettingsView {
  /** The section that is shown while the settings are open; null for the list of sections, or the first one beside it. */
  section: SettingsSection | null = $state(null);
}

export const settingsView = new SettingsView();

/** Open the settings, at this section if one is named. */
export function openSettings(page: Pick<PageModel, "dialog">, section: SettingsSection | null = null): void {
  settingsView.section = section;
  page.dialog = "settings";
}

/** Open the settings if the address asks for them, or has the outcome of connecting a service; take that out of the address. */
export function openSettingsFromAddress(page: Pick<PageModel, "dialog">): void {
  const section = receiveOutcome() ? "services" : parseSettingsSection(location.search);
  if (section === null) return;
  history.replaceState(null, "", location.pathname + location.hash);
  openSettings(page, section);
}
