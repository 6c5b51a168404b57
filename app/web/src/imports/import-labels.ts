// What an import has done, and why one failed, in words.

import { ApiError } from "@khala/client";
import type { ImportCounts, ImportFailed } from "@khala/client";
import { errorMessage } from "../state/error-messages.ts";
import { formatBytes, formatNumber, joinParts } from "../state/format.ts";
import { m } from "../i18n/messages.ts";

/** The server's limit for an export. */
export const MAX_EXPORT_BYTES = 512 * 2 ** 20;

/** By the server's names of the kinds. */
const LEFT_OUT: Readonly<Record<string, string>> = {
  "calls of tools": m.left_out_tool_calls(),
  "conversations that are being reset: import them again in a minute": m.left_out_being_reset(),
  "conversations that were deleted here": m.left_out_deleted_chats(),
  "conversations without messages": m.left_out_empty_chats(),
  "ends of very long texts": m.left_out_ends_of_texts(),
  "files of other types": m.left_out_other_files(),
  "files over the limits of this server": m.left_out_large_files(),
  "files that are not in the export": m.left_out_missing_files(),
  "hidden messages": m.left_out_hidden_messages(),
  "messages in a damaged tree": m.left_out_damaged_messages(),
  "messages of very long conversations": m.left_out_earliest_messages(),
  reasoning: m.left_out_reasoning(),
  "results of tools": m.left_out_tool_results(),
};

/** "12 chats imported · 340 messages · 5 files · 3 were here already" */
export function importLabel({ conversations, messages, files, known }: ImportCounts): string {
  return joinParts([
    m.chats_imported({ count: conversations }),
    messages > 0 && m.kind_message({ count: messages }),
    files > 0 && m.kind_file({ count: files }),
    known > 0 && m.chats_were_here_already({ count: known }),
  ]);
}

/** What was left out, as "Tool calls: 12", the most first. */
export function leftOutLabels({ leftOut }: ImportCounts): readonly string[] {
  const kinds = Object.entries(leftOut).toSorted(([, one], [, other]) => other - one);
  return kinds.map(([kind, count]) => m.left_out_kind({ kind: LEFT_OUT[kind] ?? kind, count: formatNumber(count) }));
}

/** What is wrong with a file before it is sent; null if nothing is. */
export function fileProblem({ size }: { size: number }): string | null {
  if (size === 0) return m.export_is_empty();
  return size > MAX_EXPORT_BYTES ? m.export_is_too_large({ size: formatBytes(MAX_EXPORT_BYTES) }) : null;
}

/** The message for an import that did not begin, or whose connection broke off. */
export function importError(error: unknown): string {
  if (!(error instanceof ApiError)) return m.import_broke_off();
  switch (error.code) {
    case "payload_too_large":
      return m.export_is_too_large({ size: formatBytes(MAX_EXPORT_BYTES) });
    case "rate_limited":
      return error.limit === "imports_per_hour" ? m.too_many_imports() : m.import_is_running();
    case "unauthorized":
      return m.imports_need_an_account();
    case "forbidden":
      return error.message;
    default:
      return errorMessage(error);
  }
}

/** The message for an import that ended early. */
export function failureLabel({ code, message }: ImportFailed): string {
  return code === "invalid_input" ? m.export_is_damaged_or_unknown({ reason: message }) : m.import_failed({ reason: message });
}
