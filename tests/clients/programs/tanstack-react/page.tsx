// A page with `useChat` of TanStack AI. `window.khala` has the thread's id, headers and options.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { toolDefinition } from "@tanstack/ai";
import { fetchServerSentEvents, useChat } from "@tanstack/ai-react";

const { threadId, headers, options, weather } = window.khala;
const connection = fetchServerSentEvents("/api/ag-ui", { headers, body: { options } });
window.called = [];
const { name, description, parameters } = weather;
const tools = [
  toolDefinition({ name, description, inputSchema: parameters }).client(async ({ city }) => (window.called.push(city), "sunny")),
];
const data = (url) => url.slice(url.indexOf(",") + 1);

function Chat() {
  const [text, setText] = useState("");
  const [tokens, setTokens] = useState();
  const { messages, sendMessage, interrupts, error, isLoading, sessionGenerating } = useChat({
    connection,
    threadId,
    persistence: true,
    tools,
    onChunk: (chunk) => chunk.type === "RUN_FINISHED" && setTokens(chunk.usage?.[0]?.outputTokens ?? chunk.usage?.completionTokens),
  });
  window.sendImage = (text, url) =>
    sendMessage({
      content: [
        { type: "text", content: text },
        { type: "image", source: { type: "data", value: data(url), mimeType: "image/png" } },
      ],
    });
  const submit = (event) => (event.preventDefault(), setText(""), sendMessage(text));
  return (
    <main data-status={isLoading || sessionGenerating ? "busy" : "ready"}>
      {messages.map(({ id, role, parts }) => (
        <p key={id} className={role} data-tokens={tokens}>
          {parts.map((part, index) => part.type === "text" && <span key={index}>{part.content}</span>)}
        </p>
      ))}
      {interrupts.map((interrupt) => (
        <button key={interrupt.id} onClick={() => interrupt.resolveInterrupt({ approved: true })}>Approve</button>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={submit}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button type="submit">Send</button>
        <button type="button" onClick={() => fetch(`/api/ag-ui/${threadId}/stop`, { method: "POST", headers })}>Stop</button>
      </form>
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(<Chat />);
