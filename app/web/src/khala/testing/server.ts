// A small HTTP server of Node's, for what asks over the network.

/** What a test needs of `node:http`, whose types come with Node and not with the browser. */
interface Incoming extends AsyncIterable<Uint8Array> {
  readonly method: string;
  readonly url: string;
  readonly headers: Record<string, string | undefined>;
}
interface Outgoing {
  writeHead(status: number, headers?: Record<string, string | number>): void;
  write(text: string): void;
  end(text?: string | Uint8Array): void;
  destroy(): void;
}
interface Listening {
  listen(port: number, host: string, done: () => void): void;
  address(): { port: number };
  closeAllConnections(): void;
  close(done: () => void): void;
}
type Http = { createServer: (handle: (request: Incoming, response: Outgoing) => void) => Listening };

export interface Asked {
  method: string;
  path: string;
  headers: Record<string, string | undefined>;
  body: string;
}

/** Serves with `answer` until `close`; `url` is where, `asked` what was asked. */
export async function served(answer: (asked: Asked, response: Outgoing) => void): Promise<{ url: string; asked: Asked[]; close: () => Promise<void> }> {
  const name = "node:http";
  const { createServer } = (await import(/* @vite-ignore */ name)) as Http;
  const asked: Asked[] = [];
  const handle = async (request: Incoming, response: Outgoing): Promise<void> => {
    let body = "";
    for await (const chunk of request) body += new TextDecoder().decode(chunk);
    const one = { method: request.method, path: request.url, headers: request.headers, body };
    asked.push(one);
    answer(one, response);
  };
  const server = createServer((request, response) => void handle(request, response));
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const close = (): Promise<void> => {
    server.closeAllConnections();
    return new Promise((done) => server.close(done));
  };
  return { url: `http://127.0.0.1:${server.address().port}`, asked, close };
}
