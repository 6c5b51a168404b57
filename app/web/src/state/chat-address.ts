// Addresses of chats: `/t/{id}`, with the key of a share link in `#share=`.

export function chatPath(id: string): string {
  return `/t/${id}`;
}

/** The chat id and the share key of an address, null where absent. */
export function parseChatAddress({ pathname, hash }: { pathname: string; hash: string }): { id: string | null; shareKey: string | null } {
  const id = /^\/t\/([\w-]+)/.exec(pathname)?.[1]?.toLowerCase() ?? null;
  return { id, shareKey: id && new URLSearchParams(hash.slice(1)).get("share") };
}
