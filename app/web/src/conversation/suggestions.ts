// The suggestions of an empty chat: what this person may do there, with the tools that the server offers them.

import { m } from "../i18n/messages.ts";

const COUNT = 4;
/** What a tool makes possible, the most telling first. */
const OF_TOOLS: readonly (readonly [tool: string, text: () => string])[] = [
  ["fetch_url", m.suggest_web_page],
  ["run_code", m.suggest_code],
  ["memory_store", m.suggest_memory],
];

/** `tools` are the names of the offered tools, null if they are unknown. `mayAttach`: the person may add files. */
export interface Abilities {
  readonly tools: readonly string[] | null;
  readonly mayAttach: boolean;
}

/** Four texts for the message form. One that ends with a space is to be completed. */
export function suggestionsFor({ tools, mayAttach }: Abilities): string[] {
  const byTools = OF_TOOLS.filter(([tool]) => tools?.includes(tool)).map(([, text]) => text());
  const files = mayAttach ? [m.suggest_file()] : [];
  return [...byTools, ...files, m.suggest_table(), m.suggest_email(), m.what_can_you_do(), m.suggest_plan()].slice(0, COUNT);
}
