// Links to shared agents: `/#agent={link}`. A link begins with `~`, so it is never the name of an agent.

const LINK = /^~[\w-]{8,64}$/;

/** Whether this is the link of a shared agent, and not a name. */
export function isSharedAgent(agent: string): boolean {
  return agent.startsWith("~");
}

/** The address that opens a shared agent. */
export function agentAddress(origin: string, link: string): string {
  return `${origin}/#agent=${link}`;
}

/** The link in an address, or null. */
export function parseAgentAddress({ hash }: { hash: string }): string | null {
  const link = new URLSearchParams(hash.slice(1)).get("agent");
  return link !== null && LINK.test(link) ? link : null;
}
