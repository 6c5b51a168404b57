// A realtime client with fake sockets.

import type { ConnectionState } from "../realtime-client.ts";
import { RealtimeClient } from "../realtime-client.ts";
import type { ThreadListState, ThreadState } from "../state.ts";
import { fakeSockets } from "./fake-sockets.ts";

/** Returns a client, the fake sockets that it opens, and the events that it reports. `jitter` is from 0 to 1. */
export function startClient(jitter = 0.5) {
  const network = fakeSockets();
  const events = {
    states: [] as ThreadState[],
    connections: [] as ConnectionState[],
    refusals: [] as [string, string][],
    lists: [] as ThreadListState[],
    present: [] as [number, number][],
    complaints: [] as string[],
    signedOut: 0,
  };
  const client = new RealtimeClient(
    "ws://khala/api/ws",
    {
      onThread: (state) => void events.states.push(state),
      onThreadList: (list) => void events.lists.push(list),
      onPresence: (participants, more) => void events.present.push([participants.length, more]),
      onConnection: (connection) => void events.connections.push(connection),
      onRefused: (code, message) => void events.refusals.push([code, message]),
      onSignedOut: () => {
        events.signedOut++;
      },
      onError: (code) => void events.complaints.push(code),
    },
    { WebSocket: network.WebSocket, random: () => jitter },
  );
  return { client, network, events, state: () => events.states.at(-1) };
}
