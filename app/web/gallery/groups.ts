// The groups of states, one sheet each. Each is loaded after the frame is frozen.

import type { Group } from "./state.ts";

const LOADERS: Readonly<Record<string, () => Promise<Group>>> = {
  messages: async () => (await import("./groups/messages.ts")).messages,
  tools: async () => (await import("./groups/tools.ts")).tools,
  composer: async () => (await import("./groups/composer.ts")).composer,
  sidebar: async () => (await import("./groups/sidebar.ts")).sidebar,
  dialogs: async () => (await import("./groups/dialogs.ts")).dialogs,
  settings: async () => (await import("./groups/settings.ts")).settings,
  plans: async () => (await import("./groups/plans.ts")).plans,
  panel: async () => (await import("./groups/panel.ts")).panel,
  console: async () => (await import("./groups/console.ts")).operators,
  pages: async () => (await import("./groups/pages.ts")).pages,
};

export const GROUPS = Object.keys(LOADERS);

export async function groupOf(name: string): Promise<Group> {
  const load = LOADERS[name];
  if (load === undefined) throw new Error(`There is no group ${name}.`);
  return load();
}
