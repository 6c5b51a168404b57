// A page with `useChat` of the AI SDK. `window.khala` has the chat's id, headers and options.
import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  isToolUIPart,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";

const { threadId, headers, options, weather } = window.khala;
const transport = new DefaultChatTransport({ api: "/api/chat", headers, body: { options: { functions: [weather], ...options } } });
window.called = [];

function Chat({ initial }) {
  const [text, setText] = useState("");
  const { messages, sendMessage, status, error, addToolApprovalResponse, addToolOutput } = useChat({
    id: threadId,
    transport,
    messages: initial,
    resume: true,
    sendAutomaticallyWhen: (chat) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(chat) || lastAssistantMessageIsCompleteWithToolCalls(chat),
    onToolCall: ({ toolCall }) => {
      if (toolCall.toolName !== "weather") return;
      window.called.push(toolCall.input.city);
      addToolOutput({ tool: "weather", toolCallId: toolCall.toolCallId, output: "sunny" });
    },
  });
  window.sendImage = (text, url) => sendMessage({ text, files: [{ type: "file", mediaType: "image/png", url }] });
  const submit = (event) => (event.preventDefault(), setText(""), sendMessage({ text }));
  return (
    <main data-status={status === "ready" || status === "error" ? "ready" : "busy"}>
      {messages.map(({ id, role, parts, metadata }) => (
        <p key={id} className={role} data-tokens={metadata?.usage?.outputTokens}>
          {parts.map((part, index) => {
            if (part.type === "text") return <span key={index}>{part.text}</span>;
            if (!isToolUIPart(part) || part.state !== "approval-requested") return null;
            const approve = () => addToolApprovalResponse({ id: part.approval.id, approved: true });
            return <button key={index} onClick={approve}>Approve</button>;
          })}
        </p>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={submit}>
        <input aria-label="Message" value={text} onChange={(event) => setText(event.target.value)} />
        <button type="submit">Send</button>
        <button type="button" onClick={() => fetch(`/api/chat/${threadId}/stop`, { method: "POST", headers })}>Stop</button>
      </form>
    </main>
  );
}

const initial = await (await fetch(`/api/chat/${threadId}`, { headers })).json();
createRoot(document.body.appendChild(document.createElement("div"))).render(<Chat initial={initial} />);
