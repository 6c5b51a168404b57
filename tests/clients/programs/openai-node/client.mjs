// OpenAI's client for Node: chat completions, and responses where a feature needs them.
import OpenAI from "openai";

const cells = await import(process.env.KHALA_CELLS);
const { baseURL, call, cell, get, isCanceled, message, png, providerModel, spentToken, token, weather, words, works } = cells;
const { deepEqual, equal, match } = (await import("node:assert")).strict;

const client = new OpenAI({ baseURL, apiKey: token, maxRetries: 0 });
const tool = { type: "function", function: weather };
const ask = (content, more = {}, options = {}) =>
  client.chat.completions.create({ model: "khala", messages: [{ role: "user", content }], ...more }, options);
const respond = (input, more = {}) => client.responses.create({ model: "khala", input, ...more });

await cell("text", async () => {
  equal((await ask("/echo En taro Adun")).choices[0].message.content, "En taro Adun");
  equal((await respond("/echo En taro Adun")).output_text, "En taro Adun");
  return works("With chat completions and with responses.");
});

await cell("stream", async () => {
  let text = "";
  for await (const chunk of await ask("/words=5", { model: providerModel, stream: true })) text += chunk.choices[0]?.delta.content ?? "";
  equal(text.trim(), words(5));
  text = "";
  for await (const event of await respond("/words=5", { model: providerModel, stream: true }))
    if (event.type === "response.output_text.delta") text += event.delta;
  equal(text.trim(), words(5));
});

await cell("tools", async () => {
  const called = [];
  const run = ({ city }) => (called.push(city), "sunny");
  const runner = client.chat.completions.runTools({
    model: "khala",
    messages: [{ role: "user", content: call }],
    tools: [{ type: "function", function: { ...weather, function: run, parse: JSON.parse } }],
  });
  equal(await runner.finalContent(), "It is fine.");
  deepEqual(called, ["Aiur"]);
  return works("With `runTools`.");
});

await cell("forced", async () => {
  const choice = { type: "function", function: { name: "weather" } };
  const [forced] = (await ask("Hello", { tools: [tool], tool_choice: choice })).choices[0].message.tool_calls;
  deepEqual([forced.function.name, Object.keys(JSON.parse(forced.function.arguments))], ["weather", ["city"]]);
});

await cell("structured", async () => {
  const schema = {
    type: "object",
    properties: { name: { type: "string" }, population: { type: "integer" } },
    required: ["name", "population"],
    additionalProperties: false,
  };
  const format = { type: "json_schema", json_schema: { name: "city", schema, strict: true } };
  const { parsed } = (await client.chat.completions.parse({
    model: "khala",
    messages: [{ role: "user", content: "Which is the largest city?" }],
    response_format: format,
  })).choices[0].message;
  const city = parsed ?? JSON.parse((await ask("Hello", { response_format: format })).choices[0].message.content);
  deepEqual([typeof city.name, typeof city.population], ["string", "number"]);
});

await cell("images", async () => {
  const content = [{ type: "text", text: "Look." }, { type: "image_url", image_url: { url: png } }];
  match((await ask(content)).choices[0].message.content, /image\/png/);
});

await cell("usage", async () => equal((await ask("/words=7 /pace=0")).usage.completion_tokens, 7) ?? works());

await cell("cancel", async () => {
  const prompt = "/words=2000 /pace=50";
  const stream = await ask(prompt, { stream: true }, { headers: { "x-cancel-on-disconnect": "true" } });
  for await (const _ of stream) break;
  stream.controller.abort();
  equal(await isCanceled(prompt), true);
  const running = await respond(prompt, { background: true });
  equal((await client.responses.cancel(running.id)).status, "cancelled");
  return works("`abort()` with the header `x-cancel-on-disconnect: true`, and `responses.cancel`.");
});

await cell("resume", async () => {
  let [id, text] = ["", ""];
  for await (const event of await respond("/words=60 /pace=60", { background: true, stream: true })) {
    id = event.response?.id ?? id;
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.sequence_number === 10) break;
  }
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 10 }))
    if (event.type === "response.output_text.delta") text += event.delta;
  equal(text, words(60));
  return works("Responses: `starting_after`.");
});

cells.absent("approvals", "The protocol has approvals only for MCP servers that the client names, which Khala refuses.");

await cell("errors", async () => {
  const poor = new OpenAI({ baseURL, apiKey: spentToken, maxRetries: 0 });
  const request = { model: "khala", messages: [{ role: "user", content: "Hello" }] };
  return works("", await message(ask("Hello", { model: "gpt-none" })), await message(poor.chat.completions.create(request)));
});

cells.finish();
