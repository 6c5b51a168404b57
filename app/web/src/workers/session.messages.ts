// The messages of the session worker, as specified in session/PROTOCOL.md.

import type { BlobRef, Finish, LoadedRepository, NewRepository, RepositoryProgress, RunOptions, ToolBlock, Usage } from "@khala/client";

/** A text file of a repository. */
export type RepoFile = { path: string; content: string };

export type Init = { server?: string; anonKey?: string; token?: string; threadId?: string; options?: RunOptions };
export type Chat = { text: string; options?: RunOptions };
export type ApproveTool = { toolId: string; approved: boolean; reason?: string; args?: Record<string, unknown> };
export type LoadRepo = { files: readonly RepoFile[] } | NewRepository;

/** Each request gets exactly one response with its `id` of 1 to 64 characters. */
export type ToSession =
  | { id: string; type: "init"; payload: Init }
  | { id: string; type: "chat"; payload: Chat }
  | { id: string; type: "approve_tool"; payload: ApproveTool }
  | { id: string; type: "load_repo"; payload: LoadRepo }
  | { id: string; type: "cancel"; payload: Record<string, never> };

/** `retryAfterSeconds`: how long the host of a repository asks to wait. */
export type SessionProblem = { code: string; message: string; retryAfterSeconds?: number };

export type InitData = { threadId: string; anonKey?: string };
export type ChatData = {
  userMessageId: string;
  assistantMessageId: string;
  runId: string;
  text: string;
  finish: Finish;
};
/** `repository` is in the workspace, if it was loaded by its address. */
export type LoadRepoData = { files: number; bytes: number; attachments: string[]; repository?: LoadedRepository };
export type Data = InitData | ChatData | LoadRepoData | { toolId: string; state: string } | { runId: string };

/** The state of a tool call. Large arguments and outputs are blobs, as in the thread. */
export type ToolStep = Pick<ToolBlock, "tool" | "state"> & { toolId: string } & Partial<Pick<ToolBlock, "step" | "args" | "reason" | "summary" | "output" | "durationMs">> & {
    argsBlob?: BlobRef;
    blob?: BlobRef;
  };

/** `id` is the id of the chat request. */
export type StepMessage =
  | { type: "step"; id: string; done: false; text: string }
  | { type: "step"; id: string; done: false; tool: ToolStep }
  | { type: "step"; id: string; done: false; notice: { code: string; message: string } }
  | { type: "step"; id: string; done: true; usage: Usage; reason: Finish["reason"]; costUsd?: string };

export type FromSession =
  | { type: "ready"; tools: number; threadId: string }
  | StepMessage
  | { type: "tool_pending"; id: string; toolId: string; tool: string; args: Record<string, unknown>; digest?: string; expiresAt?: string }
  | { type: "preview_component"; id: string; html: string }
  | { type: "progress"; id: string; done: number; total: number; stage?: RepositoryProgress["stage"]; bytes?: number }
  | { type: "error"; error: SessionProblem }
  | { type: "response"; id: string | null; success: true; data: Data }
  | { type: "response"; id: string | null; success: false; error: SessionProblem };
