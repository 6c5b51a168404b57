// The suggestions of an empty chat: what this person may do there, with the tools that the server offers them.

import { BULB, CALCULATOR, DOCUMENT, ENVELOPE, GLOBE, SUN, TABLE } from "./suggestion-icons.ts";
import { m } from "../i18n/messages.ts";

const COUNT = 4;

export interface Suggestion {
  readonly icon: string;
  readonly title: string;
  /** The message that it begins. */
  readonly text: string;
  /** What it needs: a file to choose, or the autopilot for this message. */
  readonly needs?: "file" | "autopilot";
}

/** `tools` are the names of the offered tools. `isDemo`: the model only shows how answers look, so tools and files are of no use. */
export interface Abilities {
  readonly tools: readonly string[];
  readonly isDemo: boolean;
}

/** Four suggestions: what needs files and tools first, as far as they are there. */
export function suggestionsFor({ tools, isDemo }: Abilities): Suggestion[] {
  const plain: Suggestion[] = [
    { icon: ENVELOPE, title: m.suggest_email_title(), text: m.suggest_email() },
    { icon: BULB, title: m.suggest_explain_title(), text: m.suggest_explain() },
    { icon: SUN, title: m.suggest_plan_title(), text: m.suggest_plan() },
    { icon: TABLE, title: m.suggest_table_title(), text: m.suggest_table() },
  ];
  if (isDemo) return plain;
  return [{ icon: DOCUMENT, title: m.suggest_file_title(), text: m.suggest_file(), needs: "file" } as const, ...withTools(tools), ...plain].slice(0, COUNT);
}

/** The most telling suggestion for the autopilot, if the server has the tool for it. */
function withTools(tools: readonly string[]): Suggestion[] {
  if (tools.includes("fetch_url")) return [{ icon: GLOBE, title: m.suggest_web_title(), text: m.suggest_web(), needs: "autopilot" }];
  return tools.includes("run_code") ? [{ icon: CALCULATOR, title: m.suggest_code_title(), text: m.suggest_code(), needs: "autopilot" }] : [];
}
