// Decisions about tool calls that need approval: parsing edited arguments, and messages about errors and outcomes.

import { ApiError, markInvisible } from "@khala/client";
import type { Approval } from "@khala/client";
import { formatNumber } from "../state/format.ts";
import { errorMessage } from "../state/error-messages.ts";
import { jsonErrorPosition } from "./json-error.ts";
import { m } from "../i18n/messages.ts";

export const MAX_REASON_CHARACTERS = 1_000;

/** The arguments in a JSON text, or a message about why it has none. */
export function parseArguments(text: string): { args: Record<string, unknown> } | { problem: string } {
  try {
    const args: unknown = JSON.parse(text);
    const isObject = typeof args === "object" && args !== null && !Array.isArray(args);
    return isObject ? { args: args as Record<string, unknown> } : { problem: m.arguments_must_be_a_json_object({ example: "{ … }" }) };
  } catch {
    const { line, column } = jsonErrorPosition(text) ?? { line: 1, column: 1 };
    return { problem: m.not_valid_json_at({ line: formatNumber(line), column: formatNumber(column) }) };
  }
}

/** "Hidden characters: ⟨U+202E⟩ ⟨U+200B⟩": those in a JSON text that nobody would see, also escaped ones; empty without any. */
export function hiddenCharactersLabel(json: string): string {
  const text = json.replace(/\\(?:u([0-9a-f]{4})|[^])/gi, (found, code?: string) => (code === undefined ? found : String.fromCharCode(Number.parseInt(code, 16))));
  const named = new Set(markInvisible(text.replaceAll("⟨", "")).match(/⟨U\+[0-9A-F]+⟩/g));
  return named.size > 0 ? m.hidden_characters({ list: [...named].join(" ") }) : "";
}

export function decisionErrorMessage(error: unknown): string {
  if (!(error instanceof ApiError)) return errorMessage(error);
  if (error.code === "already_decided") return m.someone_else_answered_first_message({ message: error.message });
  if (error.code === "invalid_input") return m.invalid_arguments_value({ value: error.errors[0]?.message ?? error.message });
  return error.code === "forbidden" ? error.message : errorMessage(error);
}

/** "Denied by Ada: it is mine": the decision and who made it; empty while the approval is pending. */
export function describeDecision({ state, decidedName, reason }: Approval): string {
  if (state === "pending") return "";
  if (state === "expired") return m.expired_without_an_answer();
  const isApproved = state === "approved";
  const decision = decidedName ? (isApproved ? m.approved_by : m.denied_by)({ name: decidedName }) : isApproved ? m.approved_plain() : m.denied_plain();
  return reason ? m.decision_with_reason({ decision, reason }) : m.decision_without_reason({ decision });
}
