// Whose workspace an answer used. The server shows everybody only their own: that of their account, or the one that a chat's guests share.

import type { MessageView } from "../state/page-model.ts";
import { isGuestId } from "../state/keyring.ts";

type Told = Pick<MessageView, "id" | "versions"> & { readonly head: Pick<MessageView["head"], "role" | "authorId"> };
/** `userId`: of our account; null for a guest. `isShared`: whether others may have asked too. */
type Reader = { readonly userId: string | null; readonly isShared: boolean };

/**
 * Whether the tools of this answer used the workspace that the server shows to us. False if nothing says who asked for it: in a
 * shared chat, that is so for every version of an answer after the first.
 */
export function isInOurWorkspace(answerId: string, messages: readonly Told[], { userId, isShared }: Reader): boolean {
  const at = messages.findIndex(({ id }) => id === answerId);
  const answer = messages[at];
  if (answer === undefined) return false;
  if (isShared && answer.versions.length > 1 && answer.versions[0] !== answerId) return false;
  const authorId = messages.slice(0, at).findLast(({ head }) => head.role === "user")?.head.authorId;
  if (authorId === undefined) return !isShared;
  return userId === null ? isGuestId(authorId) : authorId === userId;
}
