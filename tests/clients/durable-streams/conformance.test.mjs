// The protocol's own conformance tests, against the server at KHALA_URL.
import { runConformanceTests } from "@durable-streams/server-conformance-tests";

runConformanceTests({
  baseUrl: process.env.KHALA_URL,
  longPollTimeoutMs: Number(process.env.KHALA_LONG_POLL_MS),
  subscriptions: true,
});
