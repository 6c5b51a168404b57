// A page with the hooks of CopilotKit, over AG-UI's client and without CopilotKit's own server.
// `window.khala` has the thread's id, headers and options.
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
import {
  CopilotChatConfigurationProvider,
  CopilotKitProvider,
  useAgent,
  useCopilotKit,
  useFrontendTool,
  useInterrupt,
} from "@copilotkit/react-core/v2";
import { z } from "zod";

const { threadId, headers, options, weather } = window.khala;
window.called = [];

class KhalaAgent extends HttpAgent {
  connect(input) {
    const url = `${this.url}?${new URLSearchParams({ threadId: input.threadId })}`;
    return transformHttpEventStream(runHttpRequest(() => fetch(url, { headers: { ...this.headers, Accept: "text/event-stream" } })));
  }
}

const agents = { default: new KhalaAgent({ url: "/api/ag-ui", headers, threadId }) };
const data = (url) => url.slice(url.indexOf(",") + 1);
const textOf = (content) =>
  typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join("");

function Chat() {
  const [text, setText] = useState("");
  const [error, setError] = useState("");
  const [tokens, setTokens] = useState();
  const { agent } = useAgent({ agentId: "default" });
  const { copilotkit } = useCopilotKit();
  useFrontendTool({
    name: weather.name,
    description: weather.description,
    parameters: z.object({ city: z.string() }),
    handler: async ({ city }) => (window.called.push(city), "sunny"),
  });
  const approval = useInterrupt({
    agentId: "default",
    renderInChat: false,
    render: ({ resolve }) => <button onClick={() => resolve({ approved: true })}>Approve</button>,
  });
  useEffect(() => {
    const { unsubscribe } = agent.subscribe({
      onRunFinishedEvent: ({ event }) => setTokens(event.usage?.[0]?.outputTokens),
      onRunErrorEvent: ({ event }) => setError(event.message),
      onRunFailed: ({ error }) => setError(error.message),
    });
    void copilotkit.connectAgent({ agent }).catch((error) => setError(error.message));
    return unsubscribe;
  }, [agent, copilotkit]);
  const send = (content) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
    return copilotkit.runAgent({ agent }).catch((error) => setError(error.message));
  };
  window.sendImage = (text, url) =>
    send([{ type: "text", text }, { type: "image", source: { type: "data", value: data(url), mimeType: "image/png" } }]);
  const submit = (event) => (event.preventDefault(), setText(""), void send(text));
  return (
    <main data-status={agent.isRunning ? "busy" : "ready"}>
      {agent.messages
        .filter(({ role, content }) => (role === "user" || role === "assistant") && content)
        .map(({ id, role, content }) => (
          <p key={id} className={role} data-tokens={tokens}>{textOf(content)}</p>
        ))}
      {approval}
      {error && <p role="alert">{error}</p>}
      <form onSubmit={submit}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button type="submit">Send</button>
        <button type="button" onClick={() => fetch(`/api/ag-ui/${threadId}/stop`, { method: "POST", headers })}>Stop</button>
      </form>
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(
  <CopilotKitProvider agents__unsafe_dev_only={agents} properties={{ options }} enableInspector={false}>
    <CopilotChatConfigurationProvider agentId="default" threadId={threadId}>
      <Chat />
    </CopilotChatConfigurationProvider>
  </CopilotKitProvider>,
);
