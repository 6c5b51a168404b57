// The notices of an answer in words of the page. Those of agents outside of the server keep their own.

import type { NoticeBlock } from "@khala/client";
import { m } from "../i18n/messages.ts";

/** The end of the server's notice about another model, with the model's provider and name. */
const NEXT_MODEL = / Asking (?:[a-z]+:)?(\S+) instead\.$/;

/** The sentence about a notice; the server's own words for a code that has none. */
export function noticeLabel({ code, message }: Pick<NoticeBlock, "code" | "message">): string {
  switch (code) {
    case "model_switched": {
      const model = NEXT_MODEL.exec(message)?.[1];
      return model === undefined ? m.notice_model_switched() : m.notice_model_switched_to({ model });
    }
    case "context_shrunk":
      return m.notice_context_shrunk();
    case "resumed":
      return m.notice_resumed();
    default:
      return message;
  }
}
