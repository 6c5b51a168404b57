// A message: its text, files and tool calls, and what a person has to decide about them.

import { answerStatus, visibleJson, withoutInvisible } from "@khala/client";
import type { Block, ThreadMessage, ToolBlock } from "@khala/client";
import type { UseRun } from "@khala/react";

interface MessageProps {
  message: ThreadMessage;
  /** The run that writes this message, for decisions. */
  run: UseRun | null;
  onResend: (id: string) => void;
  onWithdraw: (id: string) => void;
}

const MARKS: Record<ToolBlock["state"], string> = { queued: "…", running: "…", blocked: "?", completed: "✓", failed: "✗", cancelled: "–" };

export function Message({ message, run, onResend, onWithdraw }: MessageProps) {
  const status = message.role === "assistant" ? answerStatus(message) : "done";
  return (
    <article className={message.role} data-status={status}>
      {message.content.map((block, index) => (
        <BlockView key={index} block={block} run={run} />
      ))}
      {status === "writing" && <span className="cursor" aria-label="Writing" />}
      {status === "stopped" && <small>Stopped</small>}
      {message.delivery && <Delivery id={message.id} delivery={message.delivery} onResend={onResend} onWithdraw={onWithdraw} />}
    </article>
  );
}

function BlockView({ block, run }: { block: Block; run: UseRun | null }) {
  switch (block.type) {
    case "text":
      return <p>{block.text}</p>;
    case "tool":
      return <Call call={block} run={run} />;
    case "notice":
      return <small>{block.message}</small>;
    case "file":
      return <small>📎 {withoutInvisible(block.blob.name ?? "") || "File"}</small>;
    default:
      return null; // kinds of later versions
  }
}

function Call({ call, run }: { call: ToolBlock; run: UseRun | null }) {
  const { toolCallId, digest } = call;
  const options = digest === undefined ? {} : { digest };
  return (
    <div className="call" data-state={call.state}>
      <code>
        {MARKS[call.state]} {call.tool}
      </code>
      {call.summary && <small>{call.summary}</small>}
      {call.state === "blocked" && run && (
        <span className="decision">
          {call.args && <pre>{visibleJson(call.args)}</pre>}
          {call.args && ( // Nobody approves what they cannot see.
            <button className="primary" onClick={() => void run.approve(toolCallId, options)}>
              Approve
            </button>
          )}
          <button onClick={() => void run.deny(toolCallId, options)}>Deny</button>
        </span>
      )}
    </div>
  );
}

function Delivery({ id, delivery, onResend, onWithdraw }: { id: string; delivery: NonNullable<ThreadMessage["delivery"]>; onResend: (id: string) => void; onWithdraw: (id: string) => void }) {
  if (delivery.phase !== "failed") return <small>{delivery.phase === "sent" ? "Sent" : "Sending…"}</small>;
  return (
    <small role="alert">
      {delivery.message} <button onClick={() => onResend(id)}>Send again</button> <button onClick={() => onWithdraw(id)}>Remove</button>
    </small>
  );
}
