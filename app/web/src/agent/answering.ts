// A request to the agent becomes its reply; what goes wrong travels in it.

import type { AgentReply, AgentRequest, AgentApi, AgentMethod } from "../workers/agent.messages.ts";
import type { Agent } from "./agent.ts";

/** Never rejects. */
export async function replyTo(agent: Promise<Agent>, request: AgentRequest): Promise<AgentReply> {
  try {
    const { answers } = await agent;
    // What a name is asked with fits what its answer takes, which the compiler can't tell of a union.
    const answer = answers[request.name] as (asked: AgentApi[AgentMethod]["asked"]) => Promise<AgentApi[AgentMethod]["answer"]>;
    return { id: request.id, answer: await answer(request.asked) };
  } catch (error) {
    return { id: request.id, error: error instanceof Error ? { name: error.name, message: error.message } : { name: "Error", message: String(error) } };
  }
}
