// A feed whose network is in the hands of a test.

import type { FeedConnection } from "../feed.ts";
import { Feed } from "../feed.ts";
import type { ListState, ThreadState } from "../state.ts";
import { sockets } from "./sockets.ts";

/** A feed, the sockets that it opens, and all that it tells. */
export function started(jitter = 0.5) {
  const network = sockets();
  const told = {
    states: [] as ThreadState[],
    connections: [] as FeedConnection[],
    refusals: [] as [string, string][],
    lists: [] as ListState[],
    present: [] as [number, number][],
    complaints: [] as string[],
    signedOut: 0,
  };
  const feed = new Feed(
    "ws://khala/api/ws",
    {
      state: (state) => void told.states.push(state),
      listed: (list) => void told.lists.push(list),
      present: (participants, more) => void told.present.push([participants.length, more]),
      connection: (connection) => void told.connections.push(connection),
      refused: (code, message) => void told.refusals.push([code, message]),
      signedOut: () => {
        told.signedOut++;
      },
      complaint: (code) => void told.complaints.push(code),
    },
    { WebSocket: network.WebSocket, random: () => jitter },
  );
  return { feed, network, told, state: () => told.states.at(-1) };
}
